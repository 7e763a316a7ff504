// A tokenizer for a model that is trained from scratch: the files of a folder that has one.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/tokenizer_files.h"
#include "engine/model/model_config.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta::training {

struct LoadedTokenizer {
  TokenizerFiles files;
  std::string fingerprint;  // SHA-256 of the file that counts
  std::unique_ptr<Tokenizer> tokenizer;
};

// tokenizer.json or, where there is none, tokenizer.model, with tokenizer_config.json and
// chat_template.jinja beside them. `config.vocab_size` of 0 becomes the number of pieces of
// tokenizer.model; its ids of begin and end of text become the tokenizer's. NOT_FOUND without a
// tokenizer; INVALID_ARGUMENT (`vocab_size`) for a tokenizer.json without that number; errors of
// Tokenizer::Load.
absl::StatusOr<LoadedTokenizer> LoadTokenizerFolder(const std::string& folder, ModelConfig& config);

}  // namespace eta::training
