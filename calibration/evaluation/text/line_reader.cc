#include "calibration/evaluation/text/line_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 16;

}  // namespace

absl::StatusOr<LineReader> LineReader::Open(const std::string& path, const TextLimits& limits) {
  ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream,
                   ByteStream::Open(path, limits.max_decoder_bytes));
  return LineReader(std::move(stream), limits);
}

absl::StatusOr<std::optional<std::string>> LineReader::Next() {
  while (true) {
    absl::StatusOr<std::optional<std::string>> line = Read(/*whole=*/false);
    if (!line.ok() || !line->has_value()) return line;
    ++number_;
    if ((*line)->find_first_not_of(" \t\r") != std::string::npos) return line;
  }
}

// Bytes up to the next newline (left out), or to the end if `whole`.
absl::StatusOr<std::optional<std::string>> LineReader::Read(bool whole) {
  std::string text;
  bool any = false;
  while (true) {
    if (begin_ == buffer_.size()) {
      RETURN_IF_ERROR(Fill());
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

absl::Status LineReader::Fill() {
  buffer_.resize(kChunkBytes);
  begin_ = 0;
  ASSIGN_OR_RETURN(const size_t got, stream_->Read(buffer_.data(), buffer_.size()));
  buffer_.resize(got);
  total_ += got;
  if (total_ > limits_.max_total_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: the file holds more than ", limits_.max_total_bytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace eta
