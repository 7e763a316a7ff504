#include "calibration/evaluation/text/text_source.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/text/byte_stream.h"
#include "engine/base/error.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 16;

// Reads up to a separator or to the end, within the limits.
class BoundedReader {
 public:
  BoundedReader(std::unique_ptr<ByteStream> stream, const TextLimits& limits)
      : stream_(std::move(stream)), limits_(limits) {}

  // Bytes up to the next newline (left out), or to the end if `whole`; nullopt at the end.
  absl::StatusOr<std::optional<std::string>> Read(bool whole) {
    std::string text;
    bool any = false;
    while (true) {
      if (begin_ == buffer_.size()) {
        const absl::Status filled = Fill();
        if (!filled.ok()) return filled;
        if (buffer_.empty()) break;
      }
      any = true;
      const size_t newline = whole ? std::string::npos : buffer_.find('\n', begin_);
      const size_t end = newline == std::string::npos ? buffer_.size() : newline;
      if (end - begin_ > limits_.max_document_bytes - text.size()) {
        return absl::InvalidArgumentError(absl::StrCat("text: a document or line takes more than ",
                                                       limits_.max_document_bytes, " bytes"));
      }
      text.append(buffer_, begin_, end - begin_);
      begin_ = end;
      if (newline != std::string::npos) {
        ++begin_;
        break;
      }
    }
    if (!any) return std::nullopt;
    return text;
  }

 private:
  absl::Status Fill() {
    buffer_.resize(kChunkBytes);
    begin_ = 0;
    const absl::StatusOr<size_t> got = stream_->Read(buffer_.data(), buffer_.size());
    if (!got.ok()) return got.status();
    buffer_.resize(*got);
    total_ += *got;
    if (total_ > limits_.max_total_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("text: the file holds more than ", limits_.max_total_bytes, " bytes"));
    }
    return absl::OkStatus();
  }

  std::unique_ptr<ByteStream> stream_;
  TextLimits limits_;
  std::string buffer_;
  size_t begin_ = 0;
  uint64_t total_ = 0;
};

class PlainText : public TextSource {
 public:
  explicit PlainText(BoundedReader reader) : reader_(std::move(reader)) {}
  absl::StatusOr<std::optional<std::string>> Next() override { return reader_.Read(true); }

 private:
  BoundedReader reader_;
};

class JsonLines : public TextSource {
 public:
  explicit JsonLines(BoundedReader reader) : reader_(std::move(reader)) {}

  absl::StatusOr<std::optional<std::string>> Next() override {
    while (true) {
      absl::StatusOr<std::optional<std::string>> line = reader_.Read(false);
      if (!line.ok() || !line->has_value()) return line;
      ++line_number_;
      if ((*line)->find_first_not_of(" \t\r") == std::string::npos) continue;
      nlohmann::json json = nlohmann::json::parse(**line, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object() || !json.contains("text") || !json["text"].is_string()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "text: line ", line_number_, " is not a JSON object with a string field 'text'"));
      }
      return std::move(json["text"].get_ref<std::string&>());
    }
  }

 private:
  BoundedReader reader_;
  int64_t line_number_ = 0;
};

}  // namespace

absl::Status CheckTextTokens(size_t tokens, size_t limit) {
  if (tokens <= limit) return absl::OkStatus();
  return InvalidField("text", absl::StrCat("more than ", limit, " tokens of it would be held"));
}

absl::StatusOr<std::unique_ptr<TextSource>> TextSource::Open(const std::string& path,
                                                             const TextLimits& limits) {
  const std::string name = path.ends_with(".xz") ? path.substr(0, path.size() - 3) : path;
  const bool lines = name.ends_with(".jsonl");
  if (!lines && !name.ends_with(".txt")) {
    return absl::InvalidArgumentError(
        "text: the file's name must end in .txt, .jsonl, .txt.xz or .jsonl.xz");
  }
  absl::StatusOr<std::unique_ptr<ByteStream>> stream =
      ByteStream::Open(path, limits.max_decoder_bytes);
  if (!stream.ok()) return stream.status();
  BoundedReader reader(*std::move(stream), limits);
  if (lines) return std::make_unique<JsonLines>(std::move(reader));
  return std::make_unique<PlainText>(std::move(reader));
}

}  // namespace eta
