#include "calibration/profiles/store/sql/postgres_database.h"

#include <algorithm>
#include <utility>

#include "calibration/profiles/store/store_error.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "kernels/system/failpoint.h"

namespace eta {
namespace {

constexpr int64_t kPostgresVersion = 3;
constexpr size_t kMaxIdle = 8;
constexpr int kAttempts = 4;  // of a transaction that PostgreSQL ended
constexpr std::chrono::milliseconds kFirstPause{100};
constexpr std::chrono::milliseconds kLongestPause{500};  // writes are back within 2 s

// Texts compare by their bytes, as in SQLite.
constexpr char kPostgresSchema[] = R"(
CREATE TABLE eta_profiles (
  tenant text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, version bigint NOT NULL,
  create_time_us bigint NOT NULL, request_id text, payload_digest text, record bytea,
  PRIMARY KEY (tenant, name, version), UNIQUE (tenant, request_id));
CREATE TABLE eta_aliases (
  tenant text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL,
  alias text COLLATE "C" NOT NULL, version bigint NOT NULL,
  PRIMARY KEY (tenant, name, alias));
CREATE TABLE eta_changes (
  tenant text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, revision bigint NOT NULL,
  PRIMARY KEY (tenant, name));
CREATE INDEX eta_changes_by_revision ON eta_changes (revision);
ALTER TABLE eta_profiles ENABLE ROW LEVEL SECURITY;
ALTER TABLE eta_profiles FORCE ROW LEVEL SECURITY;
CREATE POLICY eta_own_tenant ON eta_profiles
  USING (tenant = current_setting('app.tenant', true))
  WITH CHECK (tenant = current_setting('app.tenant', true));
ALTER TABLE eta_aliases ENABLE ROW LEVEL SECURITY;
ALTER TABLE eta_aliases FORCE ROW LEVEL SECURITY;
CREATE POLICY eta_own_tenant ON eta_aliases
  USING (tenant = current_setting('app.tenant', true))
  WITH CHECK (tenant = current_setting('app.tenant', true));
CREATE TABLE eta_store (
  id int PRIMARY KEY CHECK (id = 1), revision bigint NOT NULL, schema_version bigint NOT NULL);
INSERT INTO eta_store (id, revision, schema_version) VALUES (1, 0, 1);
)";
// The additions of schema version 2. The existing rows are counted by the tables' owner with
// row-level security lifted, since otherwise only one tenant's rows are visible at a time. Counting
// may take seconds and is sent alone: statements sent together are answered together, and a server
// that does not answer for long is given up.
constexpr const char* kPostgresUses[] = {
    R"(
CREATE TABLE eta_uses (
  tenant text COLLATE "C" PRIMARY KEY, versions_ever bigint NOT NULL, versions bigint NOT NULL,
  bytes bigint NOT NULL);
CREATE FUNCTION eta_count_use() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO eta_uses AS u (tenant, versions_ever, versions, bytes)
      VALUES (NEW.tenant, 1, (NEW.record IS NOT NULL)::int, COALESCE(LENGTH(NEW.record), 0))
      ON CONFLICT (tenant) DO UPDATE SET versions_ever = u.versions_ever + 1,
        versions = u.versions + excluded.versions, bytes = u.bytes + excluded.bytes;
  ELSE
    UPDATE eta_uses SET
      versions = versions + (NEW.record IS NOT NULL)::int - (OLD.record IS NOT NULL)::int,
      bytes = bytes + COALESCE(LENGTH(NEW.record), 0) - COALESCE(LENGTH(OLD.record), 0)
      WHERE tenant = NEW.tenant;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER eta_uses AFTER INSERT OR UPDATE OF record ON eta_profiles
  FOR EACH ROW EXECUTE FUNCTION eta_count_use();
ALTER TABLE eta_profiles NO FORCE ROW LEVEL SECURITY;
)",
    R"(
INSERT INTO eta_uses (tenant, versions_ever, versions, bytes)
  SELECT tenant, COUNT(*), COUNT(record), COALESCE(SUM(LENGTH(record)), 0)
  FROM eta_profiles GROUP BY tenant;
)",
    R"(
ALTER TABLE eta_profiles FORCE ROW LEVEL SECURITY;
UPDATE eta_store SET schema_version = 2;
)"};
// The additions of schema version 3, before and after the new column is filled. Its rows, too, are
// filled with row-level security lifted.
constexpr char kPostgresModelColumns[] = R"(
ALTER TABLE eta_profiles ADD COLUMN model_fingerprint text COLLATE "C" NOT NULL DEFAULT '',
  ADD COLUMN staged bigint NOT NULL DEFAULT 0;
ALTER TABLE eta_aliases ADD COLUMN model_fingerprint text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE eta_profiles NO FORCE ROW LEVEL SECURITY;
ALTER TABLE eta_aliases NO FORCE ROW LEVEL SECURITY;
)";
constexpr const char* kPostgresModels[] = {
    R"(
CREATE INDEX eta_profiles_by_model ON eta_profiles
  (tenant, name, model_fingerprint, staged, version) WHERE record IS NOT NULL;
)",
    R"(
UPDATE eta_aliases a SET model_fingerprint = p.model_fingerprint FROM eta_profiles p
  WHERE p.tenant = a.tenant AND p.name = a.name AND p.version = a.version;
)",
    R"(
ALTER TABLE eta_aliases DROP CONSTRAINT eta_aliases_pkey,
  ADD PRIMARY KEY (tenant, name, alias, model_fingerprint);
ALTER TABLE eta_profiles FORCE ROW LEVEL SECURITY;
ALTER TABLE eta_aliases FORCE ROW LEVEL SECURITY;
UPDATE eta_store SET schema_version = 3;
)"};
static_assert(kPostgresVersion == 3);

int64_t FirstInteger(const std::vector<SqlRow>& rows) {
  const auto* number =
      rows.empty() || rows[0].empty() ? nullptr : std::get_if<int64_t>(&rows[0][0]);
  return number != nullptr ? *number : 0;
}

// Only one replica migrates at a time. The others find the work done.
absl::Status Migrate(PostgresConnection& connection) {
  RETURN_IF_ERROR(connection.Run("BEGIN; SELECT pg_advisory_xact_lock(1163149648)"));
  ASSIGN_OR_RETURN(const auto there,
                   connection.Run("SELECT COUNT(*) FROM (SELECT to_regclass('eta_store') AS t) s"
                                  " WHERE t IS NOT NULL",
                                  {}));
  if (FirstInteger(there) == 0) {
    if (ETA_FAILPOINT(kStoreMigrate)) return StoreIoError();
    RETURN_IF_ERROR(connection.Run(kPostgresSchema));
  }
  ASSIGN_OR_RETURN(const auto version, connection.Run("SELECT schema_version FROM eta_store", {}));
  if (FirstInteger(version) > kPostgresVersion) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     "the profile store was written by a newer version of this program",
                     {.reason = "STORE_SCHEMA_TOO_NEW"});
  }
  if (FirstInteger(version) < 1) return StoreCorrupt("has no schema version");
  if (FirstInteger(version) == 1) {
    if (ETA_FAILPOINT(kStoreMigrate)) return StoreIoError();
    for (const char* statements : kPostgresUses) {
      RETURN_IF_ERROR(connection.Run(statements));
    }
  }
  if (FirstInteger(version) < 3) {
    if (ETA_FAILPOINT(kStoreMigrate)) return StoreIoError();
    RETURN_IF_ERROR(connection.Run(kPostgresModelColumns));
    for (const char* statements : kPostgresModels) {
      RETURN_IF_ERROR(connection.Run(statements));
    }
  }
  return connection.Commit();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PostgresDatabase>> PostgresDatabase::Open(
    const std::string& url, std::chrono::milliseconds busy_timeout,
    std::chrono::milliseconds silence) {
  PQconninfoOption* options = PQconninfoParse(url.c_str(), nullptr);
  if (options == nullptr) return InvalidField("profile_store", "is no PostgreSQL URL");
  PQconninfoFree(options);
  std::unique_ptr<PostgresDatabase> database(new PostgresDatabase(url, busy_timeout, silence));
  absl::StatusOr<Connection> first = database->Connect();
  if (first.ok()) {
    database->GiveBack(*std::move(first));
  } else if (!absl::IsUnavailable(first.status())) {
    return first.status();
  }
  return database;
}

absl::StatusOr<PostgresDatabase::Connection> PostgresDatabase::Connect() {
  bool migrated;
  {
    const MutexLock lock(mutex_);
    if (Clock::now() < next_try_) {
      return StoreUnavailable("no connection to its server");
    }
    migrated = migrated_;
  }
  absl::StatusOr<Connection> connection = PostgresConnection::Open(url_, busy_timeout_, silence_);
  absl::Status status = connection.status();
  if (status.ok() && !migrated) {
    status = Migrate(**connection);
    (*connection)->Rollback();
  }
  const MutexLock lock(mutex_);
  connected_ = status;
  if (!status.ok()) {
    pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
    next_try_ = Clock::now() + pause_;
    return status;
  }
  migrated_ = true;
  pause_ = std::chrono::milliseconds(0);
  return connection;
}

// Closes the idle connections to the same server. After its silence each of them would cost its
// next user the same wait.
void PostgresDatabase::NoteSilence(const PostgresConnection& connection) {
  std::vector<Connection> closed;  // without the lock
  const MutexLock lock(mutex_);
  if (connection.silent()) closed.swap(idle_);
  if (connection.silent() || !connection.lost()) silent_ = connection.silent();
}

void PostgresDatabase::GiveBack(Connection connection) {
  connection->Rollback();
  NoteSilence(*connection);
  if (connection->lost()) return;
  const MutexLock lock(mutex_);
  connected_ = absl::OkStatus();  // calls are served, whatever became of the last try to connect
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(connection));
}

// An idle connection may have died with its server. That costs no error: another one is tried.
absl::StatusOr<PostgresDatabase::Connection> PostgresDatabase::Begin(const Tenant& tenant,
                                                                     const char* begin) {
  while (true) {
    Connection connection;
    {
      const MutexLock lock(mutex_);
      if (!idle_.empty()) {
        connection = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    const bool fresh = connection == nullptr;
    if (fresh) {
      ASSIGN_OR_RETURN(connection, Connect());
    }
    absl::Status status = connection->Run(begin);
    if (status.ok()) {
      status =
          connection
              ->Run("SELECT set_config('app.tenant', $1, true)", std::vector<SqlValue>{tenant.id()})
              .status();
    }
    if (status.ok()) return connection;
    const bool died = connection->lost() && !connection->silent();
    GiveBack(std::move(connection));
    if (fresh || !died) return status;
  }
}

absl::Status PostgresDatabase::Read(const Tenant& tenant, const ReadBody& body) {
  if (ETA_FAILPOINT(kStoreRead)) return StoreBusy();
  ASSIGN_OR_RETURN(Connection connection,
                   Begin(tenant, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"));
  const absl::Status status = body(*connection);
  GiveBack(std::move(connection));
  return status;
}

absl::Status PostgresDatabase::Write(const Tenant& tenant, const WriteBody& body) {
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    status = WriteOnce(tenant, body);
    if (!IsSerializationFailure(status)) break;
  }
  return status;
}

absl::Status PostgresDatabase::WriteOnce(const Tenant& tenant, const WriteBody& body) {
  // Every writer locks the row of the revision. Each later statement sees all commits before.
  ASSIGN_OR_RETURN(Connection connection,
                   Begin(tenant, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"));
  absl::Status status = connection->Run("SELECT revision FROM eta_store FOR UPDATE", {}).status();
  if (status.ok()) {
    const absl::StatusOr<SqlEnd> end = body(*connection);
    status = end.status();
    if (status.ok() && *end == SqlEnd::kCommit) {
      status = connection->Run("NOTIFY eta_profiles");
      if (ETA_FAILPOINT(kStoreNotify)) status = StoreUnavailable("its connection was lost");
      if (ETA_FAILPOINT(kStoreBeforeCommit)) status = StoreIoError();
      if (status.ok()) status = connection->Commit();
      if (ETA_FAILPOINT(kStoreAfterCommit)) status = OutcomeUnknown();
    }
  }
  GiveBack(std::move(connection));
  return status;
}

absl::Status PostgresDatabase::Poll(const ReadBody& body) {
  if (ETA_FAILPOINT(kStorePoll)) return StoreBusy();
  // Kept only if all goes well: an open transaction would show the next poll what this one saw.
  Connection poller = std::move(poller_);
  absl::Status status;
  if (poller == nullptr) {
    ASSIGN_OR_RETURN(poller, Connect());
    status = poller->Run("LISTEN eta_profiles");
  }
  poller->DrainNotifications();
  // What came during a look and was read with an answer is not on the socket any more.
  do {
    if (status.ok()) status = poller->Run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
    if (status.ok()) status = body(*poller);
    if (status.ok()) poller->Rollback();
  } while (status.ok() && poller->DrainNotifications());
  NoteSilence(*poller);
  if (status.ok()) poller_ = std::move(poller);
  return status;
}

absl::Status PostgresDatabase::Health() const {
  const MutexLock lock(mutex_);
  return silent_ ? StoreUnavailable("its server does not answer") : connected_;
}

}  // namespace eta
