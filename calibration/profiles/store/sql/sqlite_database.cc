#include "calibration/profiles/store/sql/sqlite_database.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "calibration/profiles/store/store_error.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "kernels/system/failpoint.h"

namespace eta {
namespace {

constexpr int64_t kApplicationId = 0x45544150;  // "ETAP"
constexpr int64_t kSchemaVersion = 3;
constexpr size_t kMaxIdleReaders = 8;

constexpr const char* kSchema[] = {
    "CREATE TABLE eta_profiles (tenant TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,"
    " create_time_us INTEGER NOT NULL, request_id TEXT, payload_digest TEXT, record BLOB,"
    " PRIMARY KEY (tenant, name, version), UNIQUE (tenant, request_id)) STRICT",
    "CREATE TABLE eta_aliases (tenant TEXT NOT NULL, name TEXT NOT NULL, alias TEXT NOT NULL,"
    " version INTEGER NOT NULL, PRIMARY KEY (tenant, name, alias)) STRICT",
    "CREATE TABLE eta_store (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL)"
    " STRICT",
    "CREATE TABLE eta_changes (tenant TEXT NOT NULL, name TEXT NOT NULL, revision INTEGER NOT NULL,"
    " PRIMARY KEY (tenant, name)) STRICT",
    "CREATE INDEX eta_changes_by_revision ON eta_changes (revision)",
    "INSERT INTO eta_store (id, revision) VALUES (1, 0)",
    "PRAGMA application_id = 1163149648",
    "PRAGMA user_version = 1",
};
// The additions of schema version 2.
constexpr const char* kUses[] = {
    "CREATE TABLE eta_uses (tenant TEXT NOT NULL PRIMARY KEY, versions_ever INTEGER NOT NULL,"
    " versions INTEGER NOT NULL, bytes INTEGER NOT NULL) STRICT",
    "CREATE TRIGGER eta_uses_added AFTER INSERT ON eta_profiles BEGIN"
    " INSERT INTO eta_uses (tenant, versions_ever, versions, bytes)"
    " VALUES (NEW.tenant, 1, NEW.record IS NOT NULL, COALESCE(LENGTH(NEW.record), 0))"
    " ON CONFLICT (tenant) DO UPDATE SET versions_ever = versions_ever + 1,"
    " versions = versions + excluded.versions, bytes = bytes + excluded.bytes; END",
    "CREATE TRIGGER eta_uses_changed AFTER UPDATE OF record ON eta_profiles BEGIN"
    " UPDATE eta_uses SET"
    " versions = versions + (NEW.record IS NOT NULL) - (OLD.record IS NOT NULL),"
    " bytes = bytes + COALESCE(LENGTH(NEW.record), 0) - COALESCE(LENGTH(OLD.record), 0)"
    " WHERE tenant = NEW.tenant; END",
    "INSERT INTO eta_uses (tenant, versions_ever, versions, bytes)"
    " SELECT tenant, COUNT(*), COUNT(record), COALESCE(SUM(LENGTH(record)), 0)"
    " FROM eta_profiles GROUP BY tenant",
    "PRAGMA user_version = 2",
};
// The additions of schema version 3, before and after the new columns are filled.
constexpr const char* kModelColumns[] = {
    "ALTER TABLE eta_profiles ADD COLUMN model_fingerprint TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE eta_profiles ADD COLUMN staged INTEGER NOT NULL DEFAULT 0",
};
constexpr const char* kModels[] = {
    "CREATE INDEX eta_profiles_by_model ON eta_profiles (tenant, name, model_fingerprint, staged,"
    " version) WHERE record IS NOT NULL",
    "ALTER TABLE eta_aliases RENAME TO eta_aliases_2",
    "CREATE TABLE eta_aliases (tenant TEXT NOT NULL, name TEXT NOT NULL, alias TEXT NOT NULL,"
    " model_fingerprint TEXT NOT NULL, version INTEGER NOT NULL,"
    " PRIMARY KEY (tenant, name, alias, model_fingerprint)) STRICT",
    "INSERT INTO eta_aliases (tenant, name, alias, model_fingerprint, version)"
    " SELECT a.tenant, a.name, a.alias, COALESCE(p.model_fingerprint, ''), a.version"
    " FROM eta_aliases_2 a LEFT JOIN eta_profiles p"
    " ON p.tenant = a.tenant AND p.name = a.name AND p.version = a.version",
    "DROP TABLE eta_aliases_2",
    "PRAGMA user_version = 3",
};
// The tables of version 1 that version 3 has otherwise, as SQLite says them after the changes
// above.
constexpr const char* kProfilesOf3 =
    "CREATE TABLE eta_profiles (tenant TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,"
    " create_time_us INTEGER NOT NULL, request_id TEXT, payload_digest TEXT, record BLOB,"
    " model_fingerprint TEXT NOT NULL DEFAULT '', staged INTEGER NOT NULL DEFAULT 0,"
    " PRIMARY KEY (tenant, name, version), UNIQUE (tenant, request_id)) STRICT";
constexpr size_t kUnchangedTables = 2;  // of kSchema, those from here on
static_assert(kApplicationId == 1163149648 && kSchemaVersion == 3);

// Makes the names in a folder safe on disk.
absl::Status SyncFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  if (fd >= 0) close(fd);
  return synced ? absl::OkStatus() : StoreIoError();
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Makes the folder, mode 0700, if only its last part is missing. Refuses a folder like /tmp:
// whoever may put files there may put a log beside the database, and SQLite would read it as its
// own.
absl::Status CheckFolder(const std::string& folder) {
  const bool made = mkdir(folder.c_str(), 0700) == 0;
  struct stat info = {};
  if (stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::NotFoundError("profile_store: the folder of its file does not exist");
  }
  if ((info.st_mode & S_IWOTH) != 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     "every user may write to the folder of the profile store's file (mode o+w)",
                     {.reason = "STORE_PERMISSIONS"});
  }
  return made ? SyncFolder(FolderOf(folder)) : absl::OkStatus();
}

// Makes an empty file of mode 0600, its name safe on disk. Does nothing if the file exists: it is
// not even opened, since closing it would drop the locks that this process may hold on it.
absl::Status CreateFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 && errno == EEXIST) return absl::OkStatus();
  if (fd < 0) return absl::NotFoundError("profile_store: its file cannot be made in this folder");
  const bool made = fchmod(fd, 0600) == 0 && fsync(fd) == 0;
  close(fd);
  return made ? SyncFolder(FolderOf(path)) : StoreIoError();
}

struct Identity {
  int64_t application_id = 0;
  int64_t schema_version = 0;
  int64_t objects = 0;
  bool Blank() const { return application_id == 0 && schema_version == 0 && objects == 0; }
};

// Reads inside a transaction, so that the three values are of one moment.
absl::StatusOr<Identity> ReadIdentity(SqliteConnection& connection) {
  ASSIGN_OR_RETURN(const auto objects, connection.Number("SELECT COUNT(*) FROM sqlite_schema"));
  ASSIGN_OR_RETURN(const auto application_id, connection.Number("PRAGMA application_id"));
  ASSIGN_OR_RETURN(const auto schema_version, connection.Number("PRAGMA user_version"));
  return Identity{application_id, schema_version, objects};
}

absl::Status RunAll(SqliteConnection& connection, std::span<const char* const> statements) {
  for (const char* statement : statements) {
    if (ETA_FAILPOINT(kStoreMigrate)) return StoreIoError();
    RETURN_IF_ERROR(connection.Run(statement));
  }
  return absl::OkStatus();
}

// Migrates from `version` to the next; 0 is a blank file. Does nothing for a file of another
// version.
absl::Status MigrateFrom(int64_t version, SqliteConnection& connection) {
  const absl::StatusOr<int64_t> now = connection.Number("PRAGMA user_version");
  if (!now.ok() || *now != version) return now.status();
  RETURN_IF_ERROR(connection.Run("BEGIN IMMEDIATE"));
  const absl::StatusOr<Identity> identity = ReadIdentity(connection);
  absl::Status status = identity.status();
  const bool here = status.ok() && identity->schema_version == version;  // or another was faster
  if (here && version == 0 && identity->Blank()) status = RunAll(connection, kSchema);
  if (here && version == 1) status = RunAll(connection, kUses);
  if (here && version == 2) {
    status = RunAll(connection, kModelColumns);
    if (status.ok()) status = RunAll(connection, kModels);
  }
  if (status.ok()) status = connection.Run("COMMIT");
  connection.Rollback();
  return status;
}

absl::Status CheckTables(SqliteConnection& connection, std::span<const char* const> statements) {
  for (const char* statement : statements) {
    if (!absl::StartsWith(statement, "CREATE ")) continue;
    ASSIGN_OR_RETURN(const auto there,
                     connection.Run("SELECT 1 FROM sqlite_schema WHERE sql = $1",
                                    std::vector<SqlValue>{std::string(statement)}));
    if (there.size() != 1) return StoreCorrupt("file has other tables than ours");
  }
  return absl::OkStatus();
}

absl::Status CheckTablesOf(const Identity& identity, SqliteConnection& connection) {
  if (identity.application_id != kApplicationId) {
    return StoreCorrupt("file belongs to another application");
  }
  if (identity.schema_version > kSchemaVersion) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     "the profile store was written by a newer version of this program",
                     {.reason = "STORE_SCHEMA_TOO_NEW"});
  }
  if (identity.schema_version < 1) return StoreCorrupt("file has no schema version");
  const std::span schema(kSchema);
  if (identity.schema_version > 1) {
    RETURN_IF_ERROR(CheckTables(connection, kUses));
  }
  if (identity.schema_version < 3) return CheckTables(connection, schema);
  RETURN_IF_ERROR(CheckTables(connection, std::span(&kProfilesOf3, 1)));
  RETURN_IF_ERROR(CheckTables(connection, schema.subspan(kUnchangedTables)));
  return CheckTables(connection, kModels);
}

// Refuses a file that is not a profile store, so that nothing is written to it. Makes the tables in
// a blank one. Reads in one transaction: another process may migrate the file meanwhile.
absl::Status CheckIdentity(SqliteConnection& connection) {
  const auto check = [&connection](bool blank_is_good) -> absl::StatusOr<Identity> {
    RETURN_IF_ERROR(connection.Run("BEGIN"));
    const absl::Cleanup rollback = [&connection] { connection.Rollback(); };
    const absl::StatusOr<Identity> identity = ReadIdentity(connection);
    if (!identity.ok() || (blank_is_good && identity->Blank())) return identity;
    RETURN_IF_ERROR(CheckTablesOf(*identity, connection));
    return identity;
  };
  const absl::StatusOr<Identity> identity = check(/*blank_is_good=*/true);
  if (!identity.ok() || !identity->Blank()) return identity.status();
  RETURN_IF_ERROR(MigrateFrom(0, connection));
  return check(/*blank_is_good=*/false).status();
}

// Checks indexes too, which takes longer: a damaged index would hide profiles and give a version
// twice. A page that could not be read looks like a damaged one, but not in a second run.
absl::Status CheckIntegrity(SqliteConnection& connection) {
  for (int run = 0; run < 2; ++run) {
    ASSIGN_OR_RETURN(const auto rows, connection.Run("PRAGMA integrity_check(1)", {}));
    const auto* answer = rows.empty() ? nullptr : std::get_if<std::string>(&rows.front().front());
    if (answer != nullptr && *answer == "ok") return absl::OkStatus();
  }
  return StoreCorrupt("file is corrupt");
}

// Begins the write-ahead log. SQLite does not wait by itself for others who open the file at this
// moment.
absl::Status StartLog(SqliteConnection& connection, std::chrono::milliseconds busy_timeout) {
  const auto limit = std::chrono::steady_clock::now() + busy_timeout;
  while (true) {
    const auto mode = connection.Run("PRAGMA journal_mode = WAL", {});
    if (HasReason(mode.status(), "STORE_BUSY") && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    RETURN_IF_ERROR(mode.status());
    const auto* name = mode->empty() ? nullptr : std::get_if<std::string>(&mode->front().front());
    if (name != nullptr && *name == "wal") return absl::OkStatus();
    return absl::FailedPreconditionError(
        "the profile store's file system cannot hold a write-ahead log");
  }
}

// Writes the log's own bytes again. A process whose sync failed, and which then died, leaves
// commits in the log that the page cache shows but the disk does not have. No later sync writes
// them, and a commit on top of them would be lost with them. Writing the same bytes is safe if the
// power goes, since both halves of a torn sector are the same. If other processes write to the
// file, they know what the log holds, and nothing is done.
absl::Status KeepLog(SqliteConnection& connection) {
  absl::Status status = connection.Run("BEGIN IMMEDIATE");
  if (HasReason(status, "STORE_BUSY")) return absl::OkStatus();
  if (status.ok()) status = connection.SyncLogAnew();
  connection.Rollback();
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteDatabase>> SqliteDatabase::Open(
    const std::string& path, std::chrono::milliseconds busy_timeout) {
  RETURN_IF_ERROR(CheckFolder(FolderOf(path)));
  RETURN_IF_ERROR(CreateFile(path));
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) {
    return InvalidField("profile_store", "is not a file");
  }
  if (ETA_FAILPOINT(kStoreOpen)) return StoreUnavailable("its file cannot be opened");
  ASSIGN_OR_RETURN(Connection writer, SqliteConnection::Open(path, busy_timeout));
  RETURN_IF_ERROR(CheckIdentity(*writer));
  RETURN_IF_ERROR(CheckIntegrity(*writer));
  if ((file.st_mode & 077) != 0 && chmod(path.c_str(), 0600) != 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     "the profile store's file may be read by others and is not ours to change",
                     {.reason = "STORE_PERMISSIONS"});
  }
  RETURN_IF_ERROR(StartLog(*writer, busy_timeout));
  RETURN_IF_ERROR(KeepLog(*writer));
  for (int64_t version = 1; version < kSchemaVersion; ++version) {
    RETURN_IF_ERROR(MigrateFrom(version, *writer));
  }
  std::unique_ptr<SqliteDatabase> database(
      new SqliteDatabase(path, busy_timeout, static_cast<uint64_t>(file.st_ino)));
  database->writer_ = std::move(writer);
  return database;
}

absl::StatusOr<SqliteDatabase::Connection> SqliteDatabase::BorrowReader() {
  {
    const MutexLock lock(mutex_);
    if (!idle_readers_.empty()) {
      Connection reader = std::move(idle_readers_.back());
      idle_readers_.pop_back();
      return reader;
    }
  }
  ASSIGN_OR_RETURN(Connection reader, SqliteConnection::Open(path_, busy_timeout_));
  RETURN_IF_ERROR(reader->Run("PRAGMA query_only = ON"));
  return reader;
}

absl::Status SqliteDatabase::Read(const Tenant& /*tenant*/, const ReadBody& body) {
  if (ETA_FAILPOINT(kStoreRead)) return StoreBusy();
  ASSIGN_OR_RETURN(Connection reader, BorrowReader());
  absl::Status status = reader->Run("BEGIN");
  if (status.ok()) status = body(*reader);
  reader->Rollback();
  const MutexLock lock(mutex_);
  if (idle_readers_.size() < kMaxIdleReaders) idle_readers_.push_back(std::move(reader));
  return status;
}

absl::Status SqliteDatabase::Write(const Tenant& /*tenant*/, const WriteBody& body) {
  {
    MutexLock lock(mutex_);
    const auto free = [this]() REQUIRES(mutex_) { return !writing_; };
    if (!writer_free_.WaitFor(lock, busy_timeout_, free)) return StoreBusy();
    struct stat file = {};
    if (stat(path_.c_str(), &file) != 0 || file.st_ino != inode_) failed_ = true;
    if (failed_) return StoreFailed();
    writing_ = true;
  }
  absl::Status status;
  bool io_error = false;
  const absl::Cleanup done = [&] {
    const MutexLock lock(mutex_);
    failed_ = failed_ || io_error;
    writing_ = false;
    writer_free_.NotifyOne();
  };
  status = WriteAlone(body);
  io_error = HasReason(status, "STORE_IO_ERROR");
  if (io_error) writer_.reset();
  return status;
}

absl::Status SqliteDatabase::WriteAlone(const WriteBody& body) {
  const absl::Cleanup rollback = [this] { writer_->Rollback(); };
  RETURN_IF_ERROR(writer_->Run("BEGIN IMMEDIATE"));
  const absl::StatusOr<SqlEnd> end = body(*writer_);
  absl::Status status = end.status();
  if (status.ok() && *end == SqlEnd::kCommit) {
    status = ETA_FAILPOINT(kStoreBeforeCommit) ? StoreIoError() : writer_->Run("COMMIT");
    if (ETA_FAILPOINT(kStoreAfterCommit)) status = OutcomeUnknown();
  }
  return status;
}

absl::Status SqliteDatabase::Poll(const ReadBody& body) {
  if (ETA_FAILPOINT(kStorePoll)) return StoreBusy();
  if (poller_ == nullptr) {
    ASSIGN_OR_RETURN(poller_, BorrowReader());
  }
  ASSIGN_OR_RETURN(const int64_t version, poller_->Number("PRAGMA data_version"));
  if (polled_ == version) return absl::OkStatus();
  const absl::Cleanup rollback = [this] { poller_->Rollback(); };
  absl::Status status = poller_->Run("BEGIN");
  if (status.ok()) status = body(*poller_);
  if (status.ok()) polled_ = version;
  return status;
}

absl::Status SqliteDatabase::Health() const {
  const MutexLock lock(mutex_);
  return failed_ ? StoreFailed() : absl::OkStatus();
}

}  // namespace eta
