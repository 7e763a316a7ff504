// lint: untrusted-input
#include "training/data/token_cache.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"
#include "training/data/token_cache_writer.h"

namespace eta::training {
namespace {

constexpr uint64_t kChunkTokens = uint64_t{1} << 18;
// Whoever writes a text may write its cache: neither is run, and both are checked.
constexpr InputFileOptions kAnyWriter = {.allow_writable_by_others = true};

// Token `i` of little-endian bytes.
int32_t TokenAt(std::span<const std::byte> bytes, uint32_t token_bytes, size_t i) {
  uint32_t token = 0;
  for (size_t b = 0; b < token_bytes; ++b) {
    // cannot wrap: the bytes are in memory, and there are four at most
    token |= std::to_integer<uint32_t>(bytes[i * token_bytes + b]) << (8 * b);
  }
  return static_cast<int32_t>(token);
}

}  // namespace

absl::StatusOr<TokenCache> TokenCache::Open(const std::string& path, int32_t vocab_size) {
  ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path, kAnyWriter));
  std::array<std::byte, kTokenCacheHeaderBytes> first{};
  const auto size = static_cast<size_t>(std::min<uint64_t>(file.size(), first.size()));
  RETURN_IF_ERROR(file.ReadAt(0, std::span(first).first(size)));
  ASSIGN_OR_RETURN(TokenCacheHeader header,
                   ParseTokenCacheHeader(std::span(first).first(size), file.size()));
  TokenCache cache(std::move(file), std::move(header));
  RETURN_IF_ERROR(cache.CheckTokens(vocab_size));
  return cache;
}

absl::Status TokenCache::CheckTokens(int32_t vocab_size) const {
  Sha256 digest;
  std::vector<std::byte> bytes;
  for (uint64_t at = 0; at < header_.tokens; at += kChunkTokens) {
    const auto count = static_cast<size_t>(std::min(kChunkTokens, header_.tokens - at));
    // cannot wrap: the header's tokens fit in the file, a chunk of them in memory
    bytes.resize(count * header_.token_bytes);
    // cannot wrap: as above
    RETURN_IF_ERROR(file_.ReadAt(kTokenCacheHeaderBytes + at * header_.token_bytes, bytes));
    digest.Update({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    for (size_t i = 0; i < count; ++i) {
      const int32_t token = TokenAt(bytes, header_.token_bytes, i);
      if (token >= 0 && token < vocab_size) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("token cache: token ", at + i, " is outside the vocabulary"));
    }
  }
  ASSIGN_OR_RETURN(const std::string hex, digest.Hex());
  if (hex == header_.tokens_sha256) return absl::OkStatus();
  return absl::DataLossError("token cache: the tokens are not those that were written");
}

absl::Status TokenCache::Read(uint64_t at, std::span<int32_t> out) const {
  // cannot wrap: `out` is in memory, and a token takes four bytes at most there and here
  std::vector<std::byte> bytes(out.size() * header_.token_bytes);
  // cannot wrap: the header's tokens fit in the file
  RETURN_IF_ERROR(file_.ReadAt(kTokenCacheHeaderBytes + at * header_.token_bytes, bytes));
  for (size_t i = 0; i < out.size(); ++i) out[i] = TokenAt(bytes, header_.token_bytes, i);
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenizerDigest(const std::string& tokenizer_fingerprint,
                                            const Tokenizer& tokenizer) {
  std::string parts = absl::StrCat(tokenizer_fingerprint, " vocabulary ", tokenizer.vocab_size(),
                                   " begin ", absl::StrJoin(tokenizer.beginning(), " "), " end");
  for (const int32_t id : tokenizer.eos_ids()) absl::StrAppend(&parts, " ", id);
  return Sha256Hex(parts);
}

absl::StatusOr<TokenCache> OpenTokenCache(const std::string& text, const Tokenizer& tokenizer,
                                          const TokenCacheOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) {
    return absl::ErrnoToStatus(
        error.value(),
        absl::StrCat("cache: the folder ", Quoted(options.folder), " cannot be made"));
  }
  ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(text, kAnyWriter));
  ASSIGN_OR_RETURN(const std::string digest, file.Sha256Hex());
  const std::string path = absl::StrCat(options.folder, "/", digest.substr(0, 16), "-",
                                        options.tokenizer_sha256.substr(0, 16), ".tokens");

  absl::StatusOr<TokenCache> cache = TokenCache::Open(path, tokenizer.vocab_size());
  const bool whole = cache.ok() && cache->header().text_sha256 == digest &&
                     cache->header().tokenizer_sha256 == options.tokenizer_sha256;
  if (whole) return cache;
  if (options.note && !absl::IsNotFound(cache.status())) {
    options.note(
        absl::StrCat("token cache of ", Quoted(file.name()), " is made again: ",
                     cache.ok() ? "it is another text's" : std::string(cache.status().message())));
  }
  if (options.note) options.note(absl::StrCat("tokenizing ", Quoted(file.name())));
  RETURN_IF_ERROR(
      WriteTokenCache(path, text, digest, tokenizer, options.tokenizer_sha256, options.threads));
  return TokenCache::Open(path, tokenizer.vocab_size());
}

}  // namespace eta::training
