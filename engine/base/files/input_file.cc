// lint: untrusted-input
#include "engine/base/files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"
#include "kernels/system/failpoint.h"

namespace eta {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

int64_t ChangeTimeNs(const struct stat& info) {
  // cannot wrap: a time of this host's clock, good until the year 2262
  return int64_t{info.st_ctim.tv_sec} * 1'000'000'000 + info.st_ctim.tv_nsec;
}

}  // namespace

std::string Quoted(const std::string& name) {
  constexpr size_t kMaxBytes = 128;
  const std::string escaped = absl::CHexEscape(name.substr(0, kMaxBytes));
  return absl::StrCat("'", escaped, name.size() > kMaxBytes ? "...'" : "'");
}

absl::StatusOr<InputFile> InputFile::Open(const std::string& path,
                                          const InputFileOptions& options) {
  const std::string name = path.substr(path.rfind('/') + 1);
  // O_NONBLOCK: opening a named pipe must not wait for its writer.
  const bool fails = ETA_FAILPOINT(kFileOpen);
  const int fd = fails ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = fails ? EMFILE : errno;
    if (error == ENOENT || error == ENOTDIR) {
      return absl::NotFoundError(absl::StrCat("file ", Quoted(name), " does not exist"));
    }
    return absl::ErrnoToStatus(error, absl::StrCat("file ", Quoted(name), " cannot be opened"));
  }
  InputFile file(fd, name);
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("file ", Quoted(name), " is not a regular file"));
  }
  if ((info.st_mode & S_IWOTH) != 0 && !options.allow_writable_by_others) {
    return absl::FailedPreconditionError(
        absl::StrCat("file ", Quoted(name), " may be written by every user (mode o+w)"));
  }
  file.size_ = static_cast<uint64_t>(info.st_size);
  file.changed_ns_ = ChangeTimeNs(info);
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept {
  *this = std::move(other);
}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(name_, other.name_);
  std::swap(size_, other.size_);
  std::swap(changed_ns_, other.changed_ns_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status InputFile::CheckUnchanged() const {
  struct stat info;
  if (fstat(fd_, &info) != 0 || static_cast<uint64_t>(info.st_size) != size_ ||
      ChangeTimeNs(info) != changed_ns_) {
    return absl::DataLossError(absl::StrCat("file ", Quoted(name_), " changed while it was read"));
  }
  return absl::OkStatus();
}

absl::Status InputFile::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const size_t want = std::min<uint64_t>(out.size(), uint64_t{1} << 30);
    const ssize_t got = pread(fd_, out.data(), want, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (const bool fails = ETA_FAILPOINT(kFileRead); got < 0 || fails) {
      return absl::ErrnoToStatus(fails ? EIO : errno,
                                 absl::StrCat("file ", Quoted(name_), " cannot be read"));
    }
    if (got == 0) {
      return absl::DataLossError(absl::StrCat("file ", Quoted(name_), " ends too early"));
    }
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
  return CheckUnchanged();
}

absl::StatusOr<std::string> InputFile::ReadAll(uint64_t max_bytes) const {
  if (size_ > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("file ", Quoted(name_), " is over ", max_bytes, " bytes"));
  }
  std::string bytes(size_, '\0');
  RETURN_IF_ERROR(ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

absl::StatusOr<std::string> InputFile::Sha256Hex() const {
  Sha256 hash;
  std::vector<std::byte> chunk(std::min(size_, kChunkBytes));
  for (uint64_t offset = 0; offset < size_; offset += kChunkBytes) {
    const std::span part = std::span(chunk).first(std::min(size_ - offset, kChunkBytes));
    RETURN_IF_ERROR(ReadAt(offset, part));
    hash.Update({reinterpret_cast<const char*>(part.data()), part.size()});
  }
  return hash.Hex();
}

}  // namespace eta
