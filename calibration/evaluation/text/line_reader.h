// A text file by lines, or whole, within limits. It is unpacked if its name ends in `.xz`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/evaluation/text/byte_stream.h"

namespace eta {

struct TextLimits {
  size_t max_document_bytes = size_t{16} << 20;      // one line of .jsonl, or a whole .txt
  uint64_t max_total_bytes = uint64_t{4} << 30;      // of the file, uncompressed
  uint64_t max_decoder_bytes = uint64_t{128} << 20;  // memory that an .xz may ask for
};

// Move-only.
class LineReader {
 public:
  // NotFound for a file that cannot be opened.
  static absl::StatusOr<LineReader> Open(const std::string& path, const TextLimits& limits = {});

  // The next line that is not blank; nullopt at the end. InvalidArgument past a limit, and for a
  // damaged `.xz`.
  absl::StatusOr<std::optional<std::string>> Next();
  // All that is left; nullopt if nothing is. Errors as above.
  absl::StatusOr<std::optional<std::string>> Rest() { return Read(/*whole=*/true); }

  // Of the last line that was returned, from 1 on.
  int64_t number() const { return number_; }

 private:
  LineReader(std::unique_ptr<ByteStream> stream, const TextLimits& limits)
      : stream_(std::move(stream)), limits_(limits) {}

  absl::StatusOr<std::optional<std::string>> Read(bool whole);
  absl::Status Fill();

  std::unique_ptr<ByteStream> stream_;
  TextLimits limits_;
  std::string buffer_;
  size_t begin_ = 0;
  uint64_t total_ = 0;
  int64_t number_ = 0;
};

}  // namespace eta
