// One connection to PostgreSQL, and its errors as the profile store says them.
#pragma once

#include <libpq-fe.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/store/sql_database.h"

namespace eta {

// Not thread-safe.
class PostgresConnection final : public SqlSession {
 public:
  // UNAVAILABLE (STORE_UNAVAILABLE) if the server cannot be reached. Commits wait for the disk
  // whatever the server's default; statements wait for locks at most `busy_timeout`.
  static absl::StatusOr<std::unique_ptr<PostgresConnection>> Open(
      const std::string& url, std::chrono::milliseconds busy_timeout);

  absl::StatusOr<std::vector<SqlRow>> Run(const char* statement,
                                          std::span<const SqlValue> values) override;
  // One or more statements without parameters; their rows are dropped.
  absl::Status Run(const char* statements);
  // OUTCOME_UNKNOWN if the connection was lost before the answer.
  absl::Status Commit();
  void Rollback();

  bool lost() const { return PQstatus(handle_.get()) != CONNECTION_OK; }
  int socket() const { return PQsocket(handle_.get()); }
  // Takes what notifications have come.
  void TakeNotifications();

 private:
  struct Close {
    void operator()(PGconn* handle) const { PQfinish(handle); }
  };
  explicit PostgresConnection(PGconn* handle) : handle_(handle) {}
  absl::Status Error(const PGresult* result) const;

  std::unique_ptr<PGconn, Close> handle_;
};

// True for the error of a transaction that PostgreSQL ended and that may be run again as it is.
bool IsSerializationFailure(const absl::Status& status);

}  // namespace eta
