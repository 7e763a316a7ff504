#include "training/data/token_cache_writer.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/text/text_source.h"
#include "engine/base/files/output_file.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"
#include "training/data/token_cache_header.h"

namespace eta::training {
namespace {

constexpr size_t kBatchBytes = size_t{8} << 20;  // of documents that are tokenized together
constexpr TextLimits kLimits = {.max_total_bytes = uint64_t{1} << 40};
constexpr int32_t kTwoByteVocabulary = 1 << 16;

// Some documents that follow one another, and their tokens.
struct Batch {
  std::vector<std::string> documents;
  std::vector<absl::StatusOr<std::vector<int32_t>>> tokens;
};

absl::StatusOr<Batch> ReadBatch(TextSource& source) {
  Batch batch;
  size_t bytes = 0;
  while (bytes < kBatchBytes) {
    ASSIGN_OR_RETURN(std::optional<std::string> document, source.Next());
    if (!document.has_value()) break;
    bytes += document->size() + 1;
    batch.documents.push_back(*std::move(document));
  }
  return batch;
}

void Tokenize(Batch& batch, const Tokenizer& tokenizer, int threads) {
  batch.tokens.assign(batch.documents.size(), std::vector<int32_t>());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < batch.documents.size(); i = next++) {
      batch.tokens[i] = tokenizer.Encode(batch.documents[i], /*add_bos=*/true);
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

// Writes tokens behind the header and counts them.
class CacheWriter {
 public:
  CacheWriter(OutputFile file, const Tokenizer& tokenizer)
      : file_(std::move(file)), tokenizer_(tokenizer) {
    header_.token_bytes = tokenizer.vocab_size() <= kTwoByteVocabulary ? 2 : 4;
  }

  absl::Status Begin() { return file_.Write(WriteTokenCacheHeader(header_)); }

  absl::Status Add(const Batch& batch) {
    bytes_.clear();
    for (const auto& tokens : batch.tokens) {
      ++header_.documents;
      if (!tokens.ok()) {
        return absl::Status(tokens.status().code(),
                            absl::StrCat("document ", header_.documents, ": ",
                                         std::string(tokens.status().message())));
      }
      for (const int32_t token : *tokens) Append(token);
      // A tokenizer.json may have put the end there itself.
      const std::vector<int32_t>& ends = tokenizer_.eos_ids();
      if (!ends.empty() && (tokens->empty() || tokens->back() != ends.front())) {
        Append(ends.front());
      }
    }
    digest_.Update({reinterpret_cast<const char*>(bytes_.data()), bytes_.size()});
    return file_.Write(std::span<const std::byte>(bytes_));
  }

  absl::Status Finish(const std::string& text_sha256, const std::string& tokenizer_sha256) {
    ASSIGN_OR_RETURN(const std::string digest, digest_.Hex());
    header_.text_sha256 = text_sha256;
    header_.tokenizer_sha256 = tokenizer_sha256;
    header_.tokens_sha256 = digest;
    RETURN_IF_ERROR(file_.WriteAt(0, WriteTokenCacheHeader(header_)));
    return file_.Commit();
  }

 private:
  void Append(int32_t token) {
    ++header_.tokens;
    for (uint32_t b = 0; b < header_.token_bytes; ++b) {
      bytes_.push_back(static_cast<std::byte>(static_cast<uint32_t>(token) >> (8 * b)));
    }
  }

  OutputFile file_;
  const Tokenizer& tokenizer_;
  TokenCacheHeader header_;
  Sha256 digest_;
  std::vector<std::byte> bytes_;
};

}  // namespace

absl::Status WriteTokenCache(const std::string& path, const std::string& text,
                             const std::string& text_sha256, const Tokenizer& tokenizer,
                             const std::string& tokenizer_sha256, int threads) {
  ASSIGN_OR_RETURN(const std::unique_ptr<TextSource> source, TextSource::Open(text, kLimits));
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  CacheWriter writer(std::move(file), tokenizer);
  RETURN_IF_ERROR(writer.Begin());
  while (true) {
    ASSIGN_OR_RETURN(Batch batch, ReadBatch(*source));
    if (batch.documents.empty()) break;
    Tokenize(batch, tokenizer, threads);
    RETURN_IF_ERROR(writer.Add(batch));
  }
  return writer.Finish(text_sha256, tokenizer_sha256);
}

}  // namespace eta::training
