// One SQLite handle, with its errors translated to those of the profile store.
#pragma once

#include <sqlite3.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/profiles/store/sql/sql_database.h"

namespace eta {

// Not thread-safe.
class SqliteConnection final : public SqlSession {
 public:
  // Opens an existing file and writes nothing to it. Triggers, views and functions of its schema
  // are not trusted.
  static absl::StatusOr<std::unique_ptr<SqliteConnection>> Open(
      const std::string& path, std::chrono::milliseconds busy_timeout);
  ~SqliteConnection() override;
  SqliteConnection(const SqliteConnection&) = delete;
  SqliteConnection& operator=(const SqliteConnection&) = delete;

  absl::StatusOr<std::vector<SqlRow>> Run(const char* statement,
                                          std::span<const SqlValue> values) override;
  // Runs a statement without parameters and rows.
  absl::Status Run(const char* statement) { return Run(statement, {}).status(); }
  // Returns the single number that the statement yields.
  absl::StatusOr<int64_t> Number(const char* statement);
  // Inside a write transaction: writes the bytes of the write-ahead log again in their place, and
  // syncs them.
  absl::Status SyncLogAnew();
  // Ends the transaction in any case.
  void Rollback();

 private:
  explicit SqliteConnection(sqlite3* handle) : handle_(handle) {}

  sqlite3* const handle_;
};

}  // namespace eta
