// What tokenizer_config.json adds to a tokenizer: the special tokens that chat templates name.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace eta {

struct TokenizerConfig {
  std::string bos_token;  // as spelled; empty: none
  std::string eos_token;
};

// Each is a text, an object with its text in "content", null or absent. INVALID_ARGUMENT for
// anything else, and for what is no JSON object. Other fields are not read.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(std::string_view json);

}  // namespace eta
