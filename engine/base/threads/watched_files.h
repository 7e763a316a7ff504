// Files that are read again when they change, as one: contents that are refused leave in effect
// what was applied before.
//
// Polls inode, size and times once a period, through symbolic links, since Kubernetes changes a
// mounted Secret or ConfigMap by swapping a link and notifications of the old file say nothing of
// the new one. Files that change one after another (a certificate, then its key) are applied once
// they fit together: what was refused is tried again each period. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/base/threads/loop_thread.h"

namespace eta {

struct WatchedFile {
  std::string name;  // what errors call it: its flag
  std::string path;
  bool secret = false;  // refused if every user of the host can read it
};

// What a file holds now. INVALID_ARGUMENT, by its name, for one that must not be used: no regular
// file, one that every user of the host can change or, if it is secret, read, or a longer one.
absl::StatusOr<std::string> ReadWhole(const WatchedFile& file, size_t max_bytes);

struct WatchedFilesOptions {
  std::vector<WatchedFile> files;      // refused if every user of the host can change them
  size_t max_bytes = size_t{4} << 20;  // of each
  std::chrono::milliseconds period{1000};
};

// Of a source that reloads.
struct ReloadStatus {
  int64_t succeeded = 0;  // with the first load
  int64_t failed = 0;     // contents that were refused, however often they were tried
  bool current = true;    // false: what the files hold is not what is in effect
};

class WatchedFiles {
 public:
  // Checks what the files hold, in their order, and puts it into effect whole or not at all. Called
  // by one thread at a time.
  using Apply = std::function<absl::Status(const std::vector<std::string>& contents)>;
  // Hears of every change but the first load: OK, or why it was refused, once for each reason.
  using Report = std::function<void(const absl::Status&)>;

  // The first load must succeed. Errors name no path.
  static absl::StatusOr<std::unique_ptr<WatchedFiles>> Open(WatchedFilesOptions options,
                                                            Apply apply, Report report);
  WatchedFiles(const WatchedFiles&) = delete;
  WatchedFiles& operator=(const WatchedFiles&) = delete;

  // What the thread does each period; afterwards the files as they were are in effect, or refused.
  void Poll();

  ReloadStatus Status() const;

 private:
  struct Seen {
    std::vector<int64_t> files;  // what tells one content from another
    bool operator==(const Seen&) const = default;
  };

  WatchedFiles(WatchedFilesOptions options, Apply apply, Report report);
  Seen Stat() const;
  // UNAVAILABLE for files that changed while they were read: that are not as `seen` any more.
  absl::Status Load(const Seen& seen);

  const WatchedFilesOptions options_;
  const Apply apply_;
  const Report report_;

  Mutex poll_mutex_;
  Seen seen_ GUARDED_BY(poll_mutex_);
  // Why the last poll failed; empty: it did not.
  std::string refused_ GUARDED_BY(poll_mutex_);

  std::atomic<int64_t> succeeded_ = 0;
  std::atomic<int64_t> failed_ = 0;
  std::atomic<bool> current_ = true;

  std::optional<LoopThread> thread_;  // last: it uses the others
};

}  // namespace eta
