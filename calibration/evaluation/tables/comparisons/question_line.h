// One line of a file of questions: `prompt`, `choices` (2 to 16 texts) and `answer`, the index of
// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eta {

class Tokenizer;

inline constexpr size_t kMostChoices = 16;

struct QuestionText {
  int64_t line = 0;  // of its file
  std::string prompt;
  std::vector<std::string> choices;  // each continues the prompt
  int32_t answer = 0;
};

struct Question {
  std::vector<int32_t> prompt;                // begins as a prompt does
  std::vector<std::vector<int32_t>> choices;  // in tokens; each continues the prompt
  int32_t answer = 0;
};

// Nullopt for anything else. The texts are UTF-8.
std::optional<QuestionText> ParseQuestion(std::string_view line);

// Prompt and choice together are the tokens of their joined text: where a choice changes the
// prompt's last tokens, these belong to the choices. Errors of the tokenizer.
absl::StatusOr<Question> TokenizeChoices(const QuestionText& text, const Tokenizer& tokenizer);

}  // namespace eta
