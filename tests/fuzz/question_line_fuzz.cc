// Any bytes as a line of a file of questions: refused, or a question within its limits, whose
// prompt and choices are the tokens of their joined texts.
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "calibration/evaluation/tables/comparisons/question_line.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/fuzz/input_reader.h"

namespace {

using eta::fuzz::Require;

const eta::Tokenizer& TheTokenizer() {
  static const std::unique_ptr<eta::Tokenizer> tokenizer = [] {
    std::ostringstream file;
    file << std::ifstream(ETA_SOURCE_DIR "/models/eta-27m/tokenizer.model", std::ios::binary)
                .rdbuf();
    eta::ModelConfig config;
    config.vocab_size = 8192;
    return *eta::Tokenizer::Load({.sentencepiece_model = file.str()}, config);
  }();
  return *tokenizer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto text = eta::ParseQuestion({reinterpret_cast<const char*>(data), size});
  if (!text) return 0;
  Require(text->choices.size() >= 2 && text->choices.size() <= eta::kMostChoices);
  Require(text->answer >= 0 && static_cast<size_t>(text->answer) < text->choices.size());
  Require(!eta::FirstInvalidUtf8(text->prompt));
  const auto question = eta::TokenizeChoices(*text, TheTokenizer());
  Require(question.ok());
  Require(question->answer == text->answer);
  Require(question->choices.size() == text->choices.size());
  Require(!question->prompt.empty() &&
          question->prompt.front() == TheTokenizer().beginning().front());
  for (size_t i = 0; i < text->choices.size(); ++i) {
    std::vector<int32_t> tokens = question->prompt;
    tokens.insert(tokens.end(), question->choices[i].begin(), question->choices[i].end());
    const auto whole = TheTokenizer().Encode(text->prompt + text->choices[i], /*add_bos=*/true);
    Require(whole.ok() && *whole == tokens);
  }
  return 0;
}
