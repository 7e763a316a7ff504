// The tokens of a model as formats of answers see them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace eta {

struct FormatVocabulary {
  int32_t size = 0;                 // V, the model's: at least as many as there are `tokens`
  std::vector<std::string> tokens;  // what each adds to a text that shows special tokens: bytes
  std::vector<int32_t> special;     // ascending
  std::vector<int32_t> ends;        // those that end an answer

  bool IsSpecial(int32_t id) const;
  bool IsEnd(int32_t id) const;
  // The special token that is spelled so.
  std::optional<int32_t> SpecialNamed(std::string_view text) const;
  // What `id` adds; nothing for an id past the end.
  std::string_view Bytes(int32_t id) const;

  bool operator==(const FormatVocabulary&) const = default;
};

FormatVocabulary FormatVocabularyOf(const Tokenizer& tokenizer);

}  // namespace eta
