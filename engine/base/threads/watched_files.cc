#include "engine/base/threads/watched_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "engine/base/files/descriptor.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "kernels/system/failpoint.h"

namespace eta {
namespace {

// Why a file is not to be read; empty: it is.
std::string Objection(const struct stat& info, bool secret) {
  if (!S_ISREG(info.st_mode)) return "is no regular file";
  if ((info.st_mode & S_IWOTH) != 0) return "every user of this host may change it";
  if (secret && (info.st_mode & S_IROTH) != 0) return "every user of this host may read it";
  return "";
}

}  // namespace

absl::StatusOr<std::string> ReadWhole(const WatchedFile& file, size_t max_bytes) {
  const auto wrong = [&file](const std::string& why) {
    return absl::InvalidArgumentError(file.name + ": " + why);
  };
  // A pipe must not hold us up.
  const Descriptor opened(open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened.valid()) return wrong("cannot be opened");
  std::string content;
  struct stat info;
  const std::string objection =
      fstat(opened.get(), &info) != 0 ? "cannot be read" : Objection(info, file.secret);
  if (!objection.empty()) return wrong(objection);
  char chunk[16384];
  while (content.size() <= max_bytes) {
    const ssize_t count = read(opened.get(), chunk, sizeof(chunk));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return wrong("cannot be read");
    if (count == 0) break;
    content.append(chunk, static_cast<size_t>(count));
  }
  if (content.size() > max_bytes) return wrong("is too long");
  return content;
}

WatchedFiles::WatchedFiles(WatchedFilesOptions options, Apply apply, Report report)
    : options_(std::move(options)), apply_(std::move(apply)), report_(std::move(report)) {}

absl::StatusOr<std::unique_ptr<WatchedFiles>> WatchedFiles::Open(WatchedFilesOptions options,
                                                                 Apply apply, Report report) {
  std::unique_ptr<WatchedFiles> files(
      new WatchedFiles(std::move(options), std::move(apply), std::move(report)));
  Seen seen = files->Stat();
  RETURN_IF_ERROR(files->Load(seen));
  {
    const MutexLock lock(files->poll_mutex_);
    files->seen_ = std::move(seen);
  }
  files->succeeded_ = 1;
  files->thread_.emplace("watched_files", files->options_.period, [raw = files.get()] {
    // What there was no memory for is done at the next poll.
    CatchOutOfMemory([raw] {
      raw->Poll();
      return absl::OkStatus();
    }).IgnoreError();
  });
  return files;
}

WatchedFiles::Seen WatchedFiles::Stat() const {
  Seen seen;
  for (const WatchedFile& file : options_.files) {
    struct stat info;
    if (stat(file.path.c_str(), &info) != 0) info = {};
    for (const int64_t value :
         {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino),
          static_cast<int64_t>(info.st_size), static_cast<int64_t>(info.st_mtim.tv_sec),
          static_cast<int64_t>(info.st_mtim.tv_nsec), static_cast<int64_t>(info.st_ctim.tv_sec),
          static_cast<int64_t>(info.st_ctim.tv_nsec)}) {
      seen.files.push_back(value);
    }
  }
  return seen;
}

absl::Status WatchedFiles::Load(const Seen& seen) {
  std::vector<std::string> contents;
  for (const WatchedFile& file : options_.files) {
    ASSIGN_OR_RETURN(auto content, ReadWhole(file, options_.max_bytes));
    contents.push_back(std::move(content));
  }
  if (Stat() != seen)
    return absl::UnavailableError(options_.files.front().name + ": changed while it was read");
  return apply_(contents);
}

void WatchedFiles::Poll() {
  const MutexLock lock(poll_mutex_);
  const Seen now = Stat();
  const bool changed = now != seen_;
  if (!changed && current_) return;
  // Before anything that may throw: what is not in effect is tried again.
  seen_ = now;
  current_ = false;
  const absl::Status status = CatchOutOfMemory([&] {
    return ETA_FAILPOINT(kFileReload) ? absl::UnavailableError("cannot be read") : Load(now);
  });
  if (status.ok()) {
    ++succeeded_;
    refused_.clear();
    current_ = true;
  } else {
    const bool told = status.message() == refused_;
    if (!told) refused_ = std::string(status.message());
    if (changed || !told) ++failed_;
    if (told) return;
  }
  report_(status);
}

ReloadStatus WatchedFiles::Status() const {
  return {.succeeded = succeeded_, .failed = failed_, .current = current_};
}

}  // namespace eta
