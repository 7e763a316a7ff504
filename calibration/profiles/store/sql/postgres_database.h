// A profile store's PostgreSQL database, shared by replicas.
//
// Rows of one tenant are walled off twice: by every statement's WHERE and by row-level security
// that compares with app.tenant, set for each transaction. (A superuser, or a role with BYPASSRLS,
// is past the second wall: give the server a role of its own. The table of changes, which names
// tenants and profiles and nothing more, has no such wall: one thread polls there for all tenants.)
// Tables are made in the first schema of the role's search_path by whichever replica comes first.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "calibration/profiles/store/sql/postgres_connection.h"
#include "calibration/profiles/store/sql/sql_database.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"

namespace eta {

// Thread-safe. Calls return UNAVAILABLE while the server is away, and after some seconds while it
// is silent. The connection is retried with growing pauses.
class PostgresDatabase final : public SqlDatabase {
 public:
  // Longer than 10 s, after which a working server gives up a statement.
  static constexpr std::chrono::milliseconds kSilence{12'000};

  // INVALID_ARGUMENT for a URL that libpq cannot read. FAILED_PRECONDITION for a newer schema or
  // missing rights. A server that is away is no error.
  static absl::StatusOr<std::unique_ptr<PostgresDatabase>> Open(
      const std::string& url, std::chrono::milliseconds busy_timeout,
      std::chrono::milliseconds silence = kSilence);

  absl::Status Read(const Tenant& tenant, const ReadBody& body) override;
  absl::Status Write(const Tenant& tenant, const WriteBody& body) override;
  absl::Status Poll(const ReadBody& body) override;
  int News() const override { return poller_ == nullptr ? -1 : poller_->socket(); }
  // UNAVAILABLE once a try to connect failed, until one succeeds or a call is served; once an
  // answer did not come, until the next one.
  absl::Status Health() const override;

 private:
  using Connection = std::unique_ptr<PostgresConnection>;

  PostgresDatabase(std::string url, std::chrono::milliseconds busy_timeout,
                   std::chrono::milliseconds silence)
      : url_(std::move(url)), busy_timeout_(busy_timeout), silence_(silence) {}
  absl::StatusOr<Connection> Connect();
  absl::StatusOr<Connection> Begin(const Tenant& tenant, const char* begin);
  void NoteSilence(const PostgresConnection& connection);
  void GiveBack(Connection connection);
  absl::Status WriteOnce(const Tenant& tenant, const WriteBody& body);

  const std::string url_;
  const std::chrono::milliseconds busy_timeout_;
  const std::chrono::milliseconds silence_;

  mutable Mutex mutex_;
  std::vector<Connection> idle_ GUARDED_BY(mutex_);
  bool migrated_ GUARDED_BY(mutex_) = false;
  absl::Status connected_ GUARDED_BY(mutex_);
  bool silent_ GUARDED_BY(mutex_) = false;
  std::chrono::milliseconds pause_ GUARDED_BY(mutex_){0};
  Clock::time_point next_try_ GUARDED_BY(mutex_);

  Connection poller_;  // of the thread that polls
};

}  // namespace eta
