// The tokens of a text file on disk, so that a text is tokenized once. Documents follow one
// another, each between begin- and end-of-text as far as the tokenizer has such tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/files/input_file.h"
#include "training/data/token_cache_header.h"

namespace eta {
class Tokenizer;
}  // namespace eta

namespace eta::training {

// Move-only. Reads are thread-safe.
class TokenCache {
 public:
  // Checks all of it: DATA_LOSS for a file that is cut short or damaged, INVALID_ARGUMENT for a
  // foreign one and for tokens outside the vocabulary. Errors of InputFile::Open.
  static absl::StatusOr<TokenCache> Open(const std::string& path, int32_t vocab_size);

  const TokenCacheHeader& header() const { return header_; }
  uint64_t tokens() const { return header_.tokens; }

  // REQUIRES: the tokens from `at` on are there. DATA_LOSS if the file has changed since Open.
  absl::Status Read(uint64_t at, std::span<int32_t> out) const;

 private:
  TokenCache(InputFile file, TokenCacheHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}
  absl::Status CheckTokens(int32_t vocab_size) const;

  InputFile file_;
  TokenCacheHeader header_;
};

// SHA-256 over everything that decides which tokens a text becomes. `tokenizer_fingerprint`: of the
// tokenizer's file (Checkpoint::tokenizer_fingerprint).
absl::StatusOr<std::string> TokenizerDigest(const std::string& tokenizer_fingerprint,
                                            const Tokenizer& tokenizer);

struct TokenCacheOptions {
  std::string folder;            // of caches; made if it is not there
  std::string tokenizer_sha256;  // TokenizerDigest
  int threads = 1;
  std::function<void(const std::string&)> note;  // hears what takes long; may be empty
};

// The cache of `text`, made if there is none that is whole and of this text and tokenizer. Errors
// of TextSource and Tokenizer::Encode, naming the document; ResourceExhausted for a full disk.
absl::StatusOr<TokenCache> OpenTokenCache(const std::string& text, const Tokenizer& tokenizer,
                                          const TokenCacheOptions& options);

}  // namespace eta::training
