// Makes the token cache of a text file.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace eta {
class Tokenizer;
}  // namespace eta

namespace eta::training {

// Reads the text of `text` document by document; `threads` of them are tokenized at a time. The
// cache is there whole afterwards, or as it was. Errors as OpenTokenCache.
absl::Status WriteTokenCache(const std::string& path, const std::string& text,
                             const std::string& text_sha256, const Tokenizer& tokenizer,
                             const std::string& tokenizer_sha256, int threads);

}  // namespace eta::training
