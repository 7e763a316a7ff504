// Answers to replay, made of texts: what people ask of long contexts that repeats them, and what
// does not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/format/answer_guide.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta::bench {

struct ReplayCase {
  std::string kind;  // "quote", "edit", "free", "random" or "json"
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;
  std::shared_ptr<const CompiledFormat> format = nullptr;  // that binds the answer
};

struct CaseSizes {
  int count = 4;           // of each kind
  int32_t context = 4096;  // most tokens of a prompt
  int32_t answer = 256;    // most tokens of an answer
};

// A window of the text, and a passage of it from anywhere.
std::vector<ReplayCase> Quotes(const Tokenizer& tokenizer, const std::string& text,
                               const CaseSizes& sizes);
// A window of the text, and how the text goes on behind it.
std::vector<ReplayCase> FreeTexts(const Tokenizer& tokenizer, const std::string& text,
                                  const CaseSizes& sizes);
// The beginning of a file of code, and the same with its most frequent long name renamed. Files
// without such a name are left out.
std::vector<ReplayCase> Edits(const Tokenizer& tokenizer, const std::vector<std::string>& files,
                              const CaseSizes& sizes);
// Tokens at random, for a model without a tokenizer.
std::vector<ReplayCase> RandomCases(int32_t vocab_size, const CaseSizes& sizes, uint64_t seed);

}  // namespace eta::bench
