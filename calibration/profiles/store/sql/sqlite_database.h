// A profile store's SQLite file: write-ahead log, every commit synced, mode 0600, in a folder that
// not every user may write. Processes of one host may share it, never over a network file system.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calibration/profiles/store/sql/sql_database.h"
#include "calibration/profiles/store/sql/sqlite_connection.h"
#include "engine/base/mutex.h"

namespace eta {

// Thread-safe. After an I/O error of a write the handle is closed and Write returns UNAVAILABLE
// (STORE_FAILED): after a failed sync nobody knows what the disk holds.
class SqliteDatabase final : public SqlDatabase {
 public:
  // Makes the file if there is none; its folder must exist. DATA_LOSS for a file that is corrupt or
  // not a profile store; the file is left as it is. FAILED_PRECONDITION for a newer schema.
  static absl::StatusOr<std::unique_ptr<SqliteDatabase>> Open(
      const std::string& path, std::chrono::milliseconds busy_timeout);

  absl::Status Read(const Tenant& tenant, const ReadBody& body) override;
  absl::Status Write(const Tenant& tenant, const WriteBody& body) override;
  absl::Status Poll(const ReadBody& body) override;
  absl::Status Health() const override;

 private:
  using Connection = std::unique_ptr<SqliteConnection>;

  SqliteDatabase(std::string path, std::chrono::milliseconds busy_timeout, uint64_t inode)
      : path_(std::move(path)), busy_timeout_(busy_timeout), inode_(inode) {}
  absl::StatusOr<Connection> BorrowReader();
  absl::Status WriteAlone(const WriteBody& body);

  const std::string path_;
  const std::chrono::milliseconds busy_timeout_;
  const uint64_t inode_;  // at Open; commits to a file put in its place would be lost

  mutable Mutex mutex_;
  CondVar writer_free_;
  bool writing_ GUARDED_BY(mutex_) = false;
  bool failed_ GUARDED_BY(mutex_) = false;
  std::vector<Connection> idle_readers_ GUARDED_BY(mutex_);
  Connection writer_;  // of the one who writes; closed once failed

  // Of the thread that polls:
  Connection poller_;
  std::optional<int64_t> polled_;  // data_version: changes with every commit by another handle
};

}  // namespace eta
