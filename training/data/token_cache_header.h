// The first bytes of a token cache: what the tokens behind them were made of. Integers are
// little-endian.
//
//   0  "ETATOKEN"             8  version, uint32: 1         12  bytes of a token, uint32: 2 or 4
//   16 tokens, uint64         24 documents, uint64          32  SHA-256 of the text's file
//   64 digest of the tokenizer                              96  SHA-256 of the tokens' bytes
//   128 the tokens, to the end of the file
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace eta::training {

inline constexpr size_t kTokenCacheHeaderBytes = 128;

struct TokenCacheHeader {
  uint32_t token_bytes = 4;
  uint64_t tokens = 0;
  uint64_t documents = 0;
  // Each 64 hexadecimal digits, or empty where it is not known yet: zeros in the file.
  std::string text_sha256;
  std::string tokenizer_sha256;
  std::string tokens_sha256;
};

std::array<std::byte, kTokenCacheHeaderBytes> WriteTokenCacheHeader(const TokenCacheHeader& header);

// `bytes`: the first bytes of a file of `file_size` bytes. DATA_LOSS for a file that is cut short
// or has bytes left over; INVALID_ARGUMENT for anything else that is no such header.
absl::StatusOr<TokenCacheHeader> ParseTokenCacheHeader(std::span<const std::byte> bytes,
                                                       uint64_t file_size);

}  // namespace eta::training
