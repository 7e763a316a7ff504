#include "training/data/token_corpus.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"

namespace eta::training {

absl::StatusOr<TokenCorpus> TokenCorpus::Open(std::span<const std::string> texts,
                                              const Tokenizer& tokenizer,
                                              const TokenCacheOptions& options) {
  TokenCorpus corpus;
  std::string digests = options.tokenizer_sha256;
  for (const std::string& text : texts) {
    absl::StatusOr<TokenCache> cache = OpenTokenCache(text, tokenizer, options);
    if (!cache.ok()) {
      return absl::Status(cache.status().code(),
                          absl::StrCat("text ", Quoted(text.substr(text.rfind('/') + 1)), ": ",
                                       std::string(cache.status().message())));
    }
    absl::StrAppend(&digests, " ", cache->header().text_sha256);
    corpus.begins_.push_back(corpus.begins_.back() + cache->tokens());
    corpus.documents_ += cache->header().documents;
    corpus.caches_.push_back(*std::move(cache));
  }
  ASSIGN_OR_RETURN(corpus.sha256_, Sha256Hex(digests));
  return corpus;
}

absl::Status TokenCorpus::Read(uint64_t at, std::span<int32_t> out) const {
  auto cache = static_cast<size_t>(std::ranges::upper_bound(begins_, at) - begins_.begin()) - 1;
  while (!out.empty()) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(out.size(), begins_[cache + 1] - at));
    if (count > 0) {
      RETURN_IF_ERROR(caches_[cache].Read(at - begins_[cache], out.first(count)));
    }
    out = out.subspan(count);
    at += count;
    ++cache;
  }
  return absl::OkStatus();
}

}  // namespace eta::training
