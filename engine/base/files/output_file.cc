#include "engine/base/files/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr size_t kLargestWrite = size_t{1} << 30;

std::string PartialName(const std::string& path) {
  return path + ".partial";
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

absl::Status OutputFile::Failed(const char* what) const {
  return absl::ErrnoToStatus(
      errno, absl::StrCat("file ", Quoted(path_.substr(path_.rfind('/') + 1)), " ", what));
}

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  OutputFile file(Descriptor(open(PartialName(path).c_str(), kFlags, 0644)), path);
  if (!file.fd_.valid()) return file.Failed("cannot be created");
  return file;
}

OutputFile::~OutputFile() {
  if (fd_.valid()) unlink(PartialName(path_).c_str());
}

absl::Status OutputFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote =
        write(fd_.get(), bytes.data(), std::min<size_t>(bytes.size(), kLargestWrite));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Failed("cannot be written");
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Write(std::string_view text) {
  return Write(std::as_bytes(std::span(text)));
}

absl::Status OutputFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Failed("cannot be written");
    bytes = bytes.subspan(static_cast<size_t>(wrote));
    offset += static_cast<uint64_t>(wrote);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  if (fsync(fd_.get()) != 0) return Failed("cannot be synced");
  if (rename(PartialName(path_).c_str(), path_.c_str()) != 0) {
    return Failed("cannot be put in place");
  }
  fd_.Reset();
  return SyncFolder(FolderOf(path_));
}

absl::Status WriteWholeFile(const std::string& path, std::string_view text) {
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  RETURN_IF_ERROR(file.Write(text));
  return file.Commit();
}

absl::Status SyncFolder(const std::string& folder) {
  const Descriptor fd(open(folder.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("folder ", Quoted(folder), " cannot be synced"));
  }
  return absl::OkStatus();
}

}  // namespace eta
