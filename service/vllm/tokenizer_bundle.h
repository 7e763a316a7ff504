// A model's tokenizer and chat template as one archive, for gateways that make tokens themselves.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/tokenizer_files.h"

namespace eta {

struct TokenizerBundle {
  std::string zip;     // files by the names that Hugging Face's libraries look for; deflate
  std::string sha256;  // of the archive, in hexadecimal digits
};

// The same files make the same bytes. A template that counts instead of the model's own replaces
// it. FAILED_PRECONDITION (UNSUPPORTED_BY_MODEL): there is no tokenizer; INTERNAL if the library
// fails.
absl::StatusOr<TokenizerBundle> MakeTokenizerBundle(const TokenizerFiles& files);

}  // namespace eta
