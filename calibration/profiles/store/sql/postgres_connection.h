// One connection to PostgreSQL, with its errors translated to those of the profile store.
#pragma once

#include <libpq-fe.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/profiles/store/sql/sql_database.h"

namespace eta {

// Not thread-safe. A server that neither answers nor reads for `silence` counts as lost.
class PostgresConnection final : public SqlSession {
 public:
  // UNAVAILABLE (STORE_UNAVAILABLE) if the server cannot be reached. Commits wait for the disk,
  // whatever the server's default is. Statements wait for locks for at most `busy_timeout`.
  static absl::StatusOr<std::unique_ptr<PostgresConnection>> Open(
      const std::string& url, std::chrono::milliseconds busy_timeout,
      std::chrono::milliseconds silence);

  absl::StatusOr<std::vector<SqlRow>> Run(const char* statement,
                                          std::span<const SqlValue> values) override;
  // One or more statements without parameters; their rows are dropped.
  absl::Status Run(const char* statements);
  // OUTCOME_UNKNOWN if the connection was lost before the answer.
  absl::Status Commit();
  // Does nothing on a lost connection.
  void Rollback();

  bool lost() const { return silent_ || PQstatus(handle_.get()) != CONNECTION_OK; }
  bool silent() const { return silent_; }  // lost because the server does not answer
  int socket() const { return PQsocket(handle_.get()); }
  // Drops what notifications have come; whether there were any.
  bool DrainNotifications();

 private:
  struct Close {
    void operator()(PGconn* handle) const { PQfinish(handle); }
  };
  struct Clear {
    void operator()(PGresult* result) const { PQclear(result); }
  };
  using Result = std::unique_ptr<PGresult, Clear>;

  PostgresConnection(PGconn* handle, std::chrono::milliseconds silence)
      : handle_(handle), silence_(silence) {}
  bool AwaitResult();
  Result LastResult(int sent);
  Result Execute(const char* statements);
  absl::Status Error(const PGresult* result) const;

  std::unique_ptr<PGconn, Close> handle_;
  const std::chrono::milliseconds silence_;
  bool silent_ = false;
};

// True for the error of a transaction that PostgreSQL ended and that may be repeated unchanged.
bool IsSerializationFailure(const absl::Status& status);

}  // namespace eta
