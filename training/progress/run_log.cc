// lint: untrusted-input
#include "training/progress/run_log.h"

#include <fcntl.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "engine/base/files/input_file.h"
#include "engine/base/files/output_file.h"
#include "engine/base/status_macros.h"

namespace eta::training {
namespace {

constexpr uint64_t kMaxLogBytes = uint64_t{1} << 30;

}  // namespace

absl::StatusOr<RunLog> RunLog::Open(const std::string& path, int64_t last_step,
                                    RunHistory& history) {
  history = {};
  if (last_step > 0) {
    const absl::StatusOr<InputFile> file =
        InputFile::Open(path, {.allow_writable_by_others = true});
    if (!file.ok() && !absl::IsNotFound(file.status())) return file.status();
    if (file.ok()) {
      ASSIGN_OR_RETURN(const std::string text, file->ReadAll(kMaxLogBytes));
      ASSIGN_OR_RETURN(history, ParseRunLog(text, last_step));
    }
  }
  RETURN_IF_ERROR(WriteWholeFile(path, HistoryText(history)));
  Descriptor fd(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "log: the file cannot be opened");
  return RunLog(std::move(fd));
}

absl::Status RunLog::Append(const std::string& line) {
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t wrote = write(fd_.get(), rest.data(), rest.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return absl::ErrnoToStatus(errno, "log: the file cannot be written");
    rest.remove_prefix(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

}  // namespace eta::training
