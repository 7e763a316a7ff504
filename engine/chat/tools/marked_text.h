// The text of an answer with the special tokens that mean something in it. A special token is two
// bytes: one that no UTF-8 has, and its number in AnswerForm::marks. So it is never taken for the
// same letters, and leaves no text behind.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/text_mark.h"
#include "engine/chat/tools/answer_form.h"

namespace eta {

inline constexpr char kMarkByte = '\xFF';
inline constexpr size_t kMarkBytes = 2;

// REQUIRES: marks in the order of their places; UTF-8. Ids that the form does not have say nothing.
void AppendMarked(const AnswerForm& form, std::string_view text, std::span<const TextMark> marks,
                  std::string& marked);

// Without special tokens.
std::string PlainText(std::string_view marked);

// How many bytes of `marked` from `at` on are the mark `mark`, as a special token or in letters: 0
// if they are none; kMore if they are all that there is, and may become it.
inline constexpr size_t kMore = std::string_view::npos;
size_t MatchMark(const AnswerForm& form, std::string_view marked, size_t at, std::string_view mark);

// Where `mark` begins in `marked`, from `from` on: the first place where it stands, or the first
// from which on all that there is may become it; the end if there is neither.
size_t FindMark(const AnswerForm& form, std::string_view marked, size_t from,
                std::string_view mark);

}  // namespace eta
