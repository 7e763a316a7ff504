#include "calibration/profiles/store/sql/sqlite_connection.h"

#include <algorithm>
#include <iterator>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "calibration/profiles/store/store_error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

absl::Status SqliteError(int code) {
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:  // many others opened the log at the same moment
      return StoreBusy();
    case SQLITE_FULL:
      return StoreFull();
    case SQLITE_CORRUPT:
      return StoreCorrupt("file is corrupt");
    case SQLITE_NOTADB:
      return StoreCorrupt("file is not an SQLite database");
    case SQLITE_IOERR:
      return StoreIoError();
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return StoreUnavailable("its file cannot be opened");
    case SQLITE_READONLY:
      return StoreUnavailable("its file cannot be written");
    case SQLITE_NOMEM:
      return absl::ResourceExhaustedError("the profile store is out of memory");
    default:
      return absl::InternalError(absl::StrCat("the profile store failed: SQLite error ", code));
  }
}

int Bind(sqlite3_stmt* statement, int index, const SqlValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    return sqlite3_bind_int64(statement, index, *integer);
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    return sqlite3_bind_text64(statement, index, text->data(), text->size(), SQLITE_STATIC,
                               SQLITE_UTF8);
  }
  if (const auto* blob = std::get_if<SqlBytes>(&value)) {
    return sqlite3_bind_blob64(statement, index, blob->bytes.data(), blob->bytes.size(),
                               SQLITE_STATIC);
  }
  return sqlite3_bind_null(statement, index);
}

SqlValue Column(sqlite3_stmt* statement, int column) {
  const auto bytes = [&](const void* data) {
    const auto size = static_cast<size_t>(sqlite3_column_bytes(statement, column));
    return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
  };
  switch (sqlite3_column_type(statement, column)) {
    case SQLITE_INTEGER:
      return static_cast<int64_t>(sqlite3_column_int64(statement, column));
    case SQLITE_TEXT:
      return bytes(sqlite3_column_text(statement, column));
    case SQLITE_BLOB:
      return SqlBytes{bytes(sqlite3_column_blob(statement, column))};
    default:
      return std::monostate();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteConnection>> SqliteConnection::Open(
    const std::string& path, std::chrono::milliseconds busy_timeout) {
  sqlite3* handle = nullptr;
  constexpr int kFlags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  const int opened = sqlite3_open_v2(path.c_str(), &handle, kFlags, nullptr);
  std::unique_ptr<SqliteConnection> connection(new SqliteConnection(handle));
  if (opened != SQLITE_OK) return SqliteError(opened);
  sqlite3_busy_timeout(handle, static_cast<int>(busy_timeout.count()));
  sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  // Every commit reaches the disk before it is acknowledged. The system keeps the file's pages; a
  // connection's own, of which there are up to ten, are for the statement at hand (KiB).
  for (const char* pragma :
       {"PRAGMA synchronous = FULL", "PRAGMA cell_size_check = ON", "PRAGMA cache_size = -256"}) {
    RETURN_IF_ERROR(connection->Run(pragma));
  }
  return connection;
}

SqliteConnection::~SqliteConnection() {
  sqlite3_close_v2(handle_);
}

absl::StatusOr<std::vector<SqlRow>> SqliteConnection::Run(const char* statement,
                                                          std::span<const SqlValue> values) {
  sqlite3_stmt* prepared = nullptr;
  int code = sqlite3_prepare_v2(handle_, statement, -1, &prepared, nullptr);
  const absl::Cleanup finalize = [&prepared] { sqlite3_finalize(prepared); };
  if (code != SQLITE_OK) return SqliteError(code);
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string name = absl::StrCat("$", i + 1);
    code = Bind(prepared, sqlite3_bind_parameter_index(prepared, name.c_str()), values[i]);
    if (code != SQLITE_OK) return SqliteError(code);
  }
  std::vector<SqlRow> rows;
  while ((code = sqlite3_step(prepared)) == SQLITE_ROW) {
    SqlRow& row = rows.emplace_back();
    for (int c = 0; c < sqlite3_column_count(prepared); ++c) row.push_back(Column(prepared, c));
  }
  if (code != SQLITE_DONE) return SqliteError(code);
  return rows;
}

absl::StatusOr<int64_t> SqliteConnection::Number(const char* statement) {
  ASSIGN_OR_RETURN(const auto rows, Run(statement, {}));
  if (rows.size() != 1 || rows.front().size() != 1) {
    return absl::InternalError("the profile store failed: no number");
  }
  const auto* number = std::get_if<int64_t>(&rows.front().front());
  return number != nullptr ? *number : 0;
}

absl::Status SqliteConnection::SyncLogAnew() {
  sqlite3_file* log = nullptr;
  int code = sqlite3_file_control(handle_, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log);
  if (code != SQLITE_OK) return SqliteError(code);
  if (log == nullptr || log->pMethods == nullptr) return absl::OkStatus();
  sqlite3_int64 size = 0;
  code = log->pMethods->xFileSize(log, &size);
  std::vector<char> bytes(static_cast<size_t>(std::min<int64_t>(size, 1 << 16)));
  for (sqlite3_int64 at = 0; code == SQLITE_OK && at < size;) {
    const int part = static_cast<int>(std::min<int64_t>(size - at, std::ssize(bytes)));
    code = log->pMethods->xRead(log, bytes.data(), part, at);
    if (code == SQLITE_OK) code = log->pMethods->xWrite(log, bytes.data(), part, at);
    at += part;
  }
  if (code == SQLITE_OK && size > 0) code = log->pMethods->xSync(log, SQLITE_SYNC_NORMAL);
  return code == SQLITE_OK ? absl::OkStatus() : SqliteError(code);
}

void SqliteConnection::Rollback() {
  constexpr int kTries = 3;  // SQLite may have no memory for it
  for (int i = 0; i < kTries && sqlite3_get_autocommit(handle_) == 0; ++i) {
    sqlite3_exec(handle_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
}

}  // namespace eta
