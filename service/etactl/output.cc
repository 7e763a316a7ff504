#include "service/etactl/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "engine/base/files/descriptor.h"

namespace eta::ctl {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kModeBits = 07777;
constexpr mode_t kNewFile = 0666;  // less the process's mask

absl::Status CannotReplace(const std::string& file, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("cannot write ", file, ": ", why));
}

std::string SystemError() {
  return std::generic_category().message(errno);
}

// Where a chain of links ends, also if nothing is there yet.
fs::path EndOfLinks(fs::path file) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(file, error); ++i) {
    file = file.parent_path() / fs::read_symlink(file, error);
  }
  return file;
}

mode_t ProcessMask() {
  const mode_t mask = umask(0);
  umask(mask);
  return mask;
}

bool WriteAndSync(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return fsync(fd) == 0;
}

}  // namespace

absl::Status ReplaceFile(const std::string& file, std::string_view text) {
  const fs::path target = EndOfLinks(file);
  const fs::path folder = target.has_parent_path() ? target.parent_path() : ".";
  struct stat old = {};
  const bool replaces = stat(target.c_str(), &old) == 0;
  if (replaces && !S_ISREG(old.st_mode)) return CannotReplace(file, "it is not a regular file");
  if (replaces && access(target.c_str(), W_OK) != 0) return CannotReplace(file, SystemError());

  // A name of its own, since another process may be writing the same file.
  std::string next = (folder / absl::StrCat(".", target.filename().string(), ".XXXXXX")).string();
  const Descriptor fd(mkostemp(next.data(), O_CLOEXEC));
  if (!fd.valid()) return CannotReplace(file, SystemError());
  mode_t mode = replaces ? old.st_mode & kModeBits : kNewFile & ~ProcessMask();
  // Another group gets no rights in place of the one that had them.
  if (replaces && fchown(fd.get(), -1, old.st_gid) != 0) mode &= ~mode_t{S_IRWXG};
  const bool owner_kept = !replaces || fchown(fd.get(), old.st_uid, -1) == 0;
  if (!owner_kept) mode &= ~mode_t{S_ISUID};
  if (fchmod(fd.get(), mode) != 0 || !WriteAndSync(fd.get(), text) ||
      std::rename(next.c_str(), target.c_str()) != 0) {
    const std::string why = SystemError();
    unlink(next.c_str());
    return CannotReplace(file, why);
  }
  const Descriptor names(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!names.valid() || fsync(names.get()) != 0) return CannotReplace(file, SystemError());
  return absl::OkStatus();
}

}  // namespace eta::ctl
