// A file of a checkpoint, read with pread into memory and never mapped: a file that shrinks under a
// mapping kills the process, one that shrinks under pread is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eta {

struct InputFileOptions {
  bool allow_writable_by_others = false;  // mode o+w: somebody else may replace the contents
};

// Move-only. Reads are thread-safe.
class InputFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT for what is no regular file, FAILED_PRECONDITION
  // for one that every user may write. Messages carry the last part of `path` only.
  static absl::StatusOr<InputFile> Open(const std::string& path,
                                        const InputFileOptions& options = {});

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& name() const { return name_; }
  uint64_t size() const { return size_; }

  // Fills `out` from `offset`. DATA_LOSS if the file ends before, or has changed since Open.
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const;

  // The whole file; INVALID_ARGUMENT if it is over `max_bytes`.
  absl::StatusOr<std::string> ReadAll(uint64_t max_bytes) const;

  // SHA-256 of the contents, 64 hexadecimal digits.
  absl::StatusOr<std::string> Sha256Hex() const;

 private:
  InputFile(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
  absl::Status CheckUnchanged() const;

  int fd_ = -1;
  std::string name_;
  uint64_t size_ = 0;
  int64_t changed_ns_ = 0;  // inode change time at Open: any write or replacement moves it
};

// `name` as an error may show it: control and non-ASCII bytes escaped, cut at 128 bytes.
std::string Quoted(const std::string& name);

}  // namespace eta
