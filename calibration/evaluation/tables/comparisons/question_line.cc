// lint: untrusted-input, fuzz-covered
#include "calibration/evaluation/tables/comparisons/question_line.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace eta {

std::optional<QuestionText> ParseQuestion(std::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("prompt") || !json["prompt"].is_string() ||
      !json.contains("choices") || !json["choices"].is_array() || !json.contains("answer") ||
      !json["answer"].is_number_unsigned()) {
    return std::nullopt;
  }
  QuestionText question = {.line = 0, .prompt = json["prompt"].get<std::string>(), .choices = {}};
  for (const nlohmann::json& choice : json["choices"]) {
    if (!choice.is_string()) return std::nullopt;
    question.choices.push_back(choice.get<std::string>());
  }
  const auto answer = json["answer"].get<uint64_t>();
  if (question.choices.size() < 2 || question.choices.size() > kMostChoices ||
      answer >= question.choices.size()) {
    return std::nullopt;
  }
  question.answer = static_cast<int32_t>(answer);
  return question;
}

absl::StatusOr<Question> TokenizeChoices(const QuestionText& text, const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(auto prompt, tokenizer.Encode(text.prompt, /*add_bos=*/true));
  Question question = {.prompt = std::move(prompt), .choices = {}, .answer = text.answer};
  size_t shared = question.prompt.size();
  std::vector<std::vector<int32_t>> wholes;
  for (const std::string& choice : text.choices) {
    ASSIGN_OR_RETURN(auto whole,
                     tokenizer.Encode(absl::StrCat(text.prompt, choice), /*add_bos=*/true));
    const auto [part, ignored] = std::ranges::mismatch(whole, question.prompt);
    shared = std::min(shared, static_cast<size_t>(part - whole.begin()));
    wholes.push_back(std::move(whole));
  }
  question.prompt.resize(shared);
  for (const std::vector<int32_t>& whole : wholes) {
    question.choices.emplace_back(whole.begin() + static_cast<std::ptrdiff_t>(shared), whole.end());
  }
  return question;
}

}  // namespace eta
