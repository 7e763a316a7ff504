// lint: untrusted-input, fuzz-covered
#include "training/data/token_cache_header.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/checked.h"

namespace eta::training {
namespace {

constexpr std::string_view kMagic = "ETATOKEN";
constexpr uint32_t kVersion = 1;
constexpr size_t kDigestBytes = 32;

void PutInteger(std::span<std::byte> at, uint64_t value) {
  for (size_t i = 0; i < at.size(); ++i) {
    // cannot wrap: at most eight bytes
    at[i] = static_cast<std::byte>(value >> (8 * i));
  }
}

uint64_t GetInteger(std::span<const std::byte> at) {
  uint64_t value = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    // cannot wrap: at most eight bytes
    value |= std::to_integer<uint64_t>(at[i]) << (8 * i);
  }
  return value;
}

void PutDigest(std::span<std::byte> at, const std::string& hex) {
  const std::string digest = absl::HexStringToBytes(hex);  // empty: not known yet, left as zeros
  std::transform(digest.begin(), digest.begin() + std::min(digest.size(), kDigestBytes), at.begin(),
                 [](char c) { return static_cast<std::byte>(c); });
}

std::string GetDigest(std::span<const std::byte> at) {
  std::string digest(kDigestBytes, '\0');
  std::transform(at.begin(), at.begin() + kDigestBytes, digest.begin(),
                 [](std::byte b) { return static_cast<char>(b); });
  return absl::BytesToHexString(digest);
}

}  // namespace

std::array<std::byte, kTokenCacheHeaderBytes> WriteTokenCacheHeader(
    const TokenCacheHeader& header) {
  std::array<std::byte, kTokenCacheHeaderBytes> bytes{};
  const std::span<std::byte> all(bytes);
  std::transform(kMagic.begin(), kMagic.end(), bytes.begin(),
                 [](char c) { return static_cast<std::byte>(c); });
  PutInteger(all.subspan(8, 4), kVersion);
  PutInteger(all.subspan(12, 4), header.token_bytes);
  PutInteger(all.subspan(16, 8), header.tokens);
  PutInteger(all.subspan(24, 8), header.documents);
  PutDigest(all.subspan(32), header.text_sha256);
  PutDigest(all.subspan(64), header.tokenizer_sha256);
  PutDigest(all.subspan(96), header.tokens_sha256);
  return bytes;
}

absl::StatusOr<TokenCacheHeader> ParseTokenCacheHeader(std::span<const std::byte> bytes,
                                                       uint64_t file_size) {
  if (bytes.size() < kTokenCacheHeaderBytes) {
    return absl::DataLossError("token cache: the file ends in its header");
  }
  const auto same = [](char c, std::byte b) { return static_cast<std::byte>(c) == b; };
  if (!std::equal(kMagic.begin(), kMagic.end(), bytes.begin(), same)) {
    return absl::InvalidArgumentError("token cache: the file is none");
  }
  const uint64_t version = GetInteger(bytes.subspan(8, 4));
  if (version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("token cache: version ", version, " is not known, only ", kVersion));
  }
  TokenCacheHeader header;
  header.token_bytes = static_cast<uint32_t>(GetInteger(bytes.subspan(12, 4)));
  header.tokens = GetInteger(bytes.subspan(16, 8));
  header.documents = GetInteger(bytes.subspan(24, 8));
  header.text_sha256 = GetDigest(bytes.subspan(32));
  header.tokenizer_sha256 = GetDigest(bytes.subspan(64));
  header.tokens_sha256 = GetDigest(bytes.subspan(96));
  if (header.token_bytes != 2 && header.token_bytes != 4) {
    return absl::InvalidArgumentError("token cache: a token takes neither 2 nor 4 bytes");
  }
  const auto data = CheckedMul(header.tokens, header.token_bytes);
  const auto size = data ? CheckedAdd(*data, kTokenCacheHeaderBytes) : std::nullopt;
  if (size != file_size) {
    return absl::DataLossError("token cache: the file's length is not what its header says");
  }
  return header;
}

}  // namespace eta::training
