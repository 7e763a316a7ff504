// The tokens of several text files, one file after the other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "training/data/token_cache.h"

namespace eta::training {

// Move-only. Reads are thread-safe.
class TokenCorpus {
 public:
  // Errors of OpenTokenCache.
  static absl::StatusOr<TokenCorpus> Open(std::span<const std::string> texts,
                                          const Tokenizer& tokenizer,
                                          const TokenCacheOptions& options);

  uint64_t tokens() const { return begins_.back(); }
  uint64_t documents() const { return documents_; }
  // SHA-256 over the digests of the texts, in order, and the tokenizer's.
  const std::string& sha256() const { return sha256_; }

  // REQUIRES: the tokens from `at` on are there. Errors of TokenCache::Read.
  absl::Status Read(uint64_t at, std::span<int32_t> out) const;

 private:
  TokenCorpus() = default;

  std::vector<TokenCache> caches_;
  std::vector<uint64_t> begins_ = {0};  // of each cache, and the end of the last
  uint64_t documents_ = 0;
  std::string sha256_;
};

}  // namespace eta::training
