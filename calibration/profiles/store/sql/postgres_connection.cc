#include "calibration/profiles/store/sql/postgres_connection.h"

#include <poll.h>

#include <array>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "calibration/profiles/store/store_error.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

using std::chrono::steady_clock;

constexpr char kSerialization[] = "STORE_CONFLICT";
// How often libpq is asked: it may hold bytes of TLS that the socket does not show.
constexpr std::chrono::milliseconds kTick{100};

struct FreeMemory {
  void operator()(void* memory) const { PQfreemem(memory); }
};

// The type numbers of the server's catalogue, which never change.
constexpr Oid kBytea = 17;
constexpr std::array<Oid, 3> kIntegers = {20, 21, 23};

absl::Status FromState(const std::string& state) {
  const std::string group = state.substr(0, 2);
  if (state == "40001" || state == "40P01") {
    return MakeError(absl::StatusCode::kAborted, "the profile store had a conflict of writers",
                     {.reason = kSerialization, .retry_after = std::chrono::milliseconds(1000)});
  }
  if (state == "55P03" || state == "57014") return StoreBusy();
  if (state == "53100") return StoreFull();
  if (state == "25006") return StoreUnavailable("it is read only now");
  if (state == "58030") return StoreIoError();
  if (group == "XX") return StoreCorrupt("has a damaged database");
  if (group == "42" || group == "3F" || group == "28") {
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("the profile store's role may not do this, or its tables are not ours: ",
                     state),
        {.reason = "STORE_PERMISSIONS"});
  }
  if (group == "08" || group == "53" || group == "57") {
    return StoreUnavailable(absl::StrCat("error ", state));
  }
  return absl::InternalError(absl::StrCat("the profile store failed: PostgreSQL error ", state));
}

SqlValue Cell(const PGresult* result, int row, int column) {
  if (PQgetisnull(result, row, column) != 0) return std::monostate();
  const char* data = PQgetvalue(result, row, column);
  const std::string text(data, static_cast<size_t>(PQgetlength(result, row, column)));
  const Oid type = PQftype(result, column);
  if (type == kBytea) {
    size_t size = 0;
    const std::unique_ptr<unsigned char, FreeMemory> bytes(
        PQunescapeBytea(reinterpret_cast<const unsigned char*>(data), &size));
    if (bytes == nullptr) throw std::bad_alloc();
    return SqlBytes{std::string(reinterpret_cast<const char*>(bytes.get()), size)};
  }
  for (const Oid integer : kIntegers) {
    int64_t number = 0;
    if (type == integer && absl::SimpleAtoi(text, &number)) return number;
  }
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PostgresConnection>> PostgresConnection::Open(
    const std::string& url, std::chrono::milliseconds busy_timeout,
    std::chrono::milliseconds silence) {
  // The URL overrides the parameters before it.
  const std::array<const char*, 8> names = {
      "connect_timeout",  "tcp_user_timeout", "keepalives_idle", "keepalives_interval",
      "keepalives_count", "application_name", "dbname",          nullptr};
  const std::array<const char*, 8> values = {"3", "5000",       "30",        "10",
                                             "3", "eta-server", url.c_str(), nullptr};
  std::unique_ptr<PostgresConnection> connection(new PostgresConnection(
      PQconnectdbParams(names.data(), values.data(), /*expand_dbname=*/1), silence));
  if (connection->lost() || PQsetnonblocking(connection->handle_.get(), 1) != 0) {
    return StoreUnavailable("no connection to its server");
  }
  const std::string settings = absl::StrCat(
      "SET client_min_messages = error; SET synchronous_commit = on; SET bytea_output = hex;"
      " SET client_encoding = 'UTF8'; SET statement_timeout = 10000;"
      " SET idle_in_transaction_session_timeout = 10000; SET lock_timeout = ",
      busy_timeout.count());
  RETURN_IF_ERROR(connection->Run(settings.c_str()));
  return connection;
}

// Waits until PQgetResult will not block. False: the server fell silent.
bool PostgresConnection::AwaitResult() {
  auto heard = steady_clock::now();
  while (true) {
    const int unsent = PQflush(handle_.get());
    if (unsent < 0 || (unsent == 0 && PQisBusy(handle_.get()) == 0)) return true;
    pollfd wait = {socket(), static_cast<int16_t>(unsent > 0 ? POLLIN | POLLOUT : POLLIN), 0};
    const int ready = poll(&wait, 1, static_cast<int>(kTick.count()));
    if (PQconsumeInput(handle_.get()) == 0) return true;
    if (ready > 0) {
      heard = steady_clock::now();
    } else if (steady_clock::now() - heard > silence_) {
      silent_ = true;
      return false;
    }
  }
}

// The last result of what was sent, as PQexec returns it. Null if nothing could be sent or no
// answer came.
PostgresConnection::Result PostgresConnection::LastResult(int sent) {
  Result last;
  while (sent != 0 && AwaitResult()) {
    Result next(PQgetResult(handle_.get()));
    if (next == nullptr) return last;
    last = std::move(next);
    if (lost()) return last;
  }
  return nullptr;
}

PostgresConnection::Result PostgresConnection::Execute(const char* statements) {
  return LastResult(PQsendQuery(handle_.get(), statements));
}

absl::Status PostgresConnection::Error(const PGresult* result) const {
  if (silent_) return StoreUnavailable("its server does not answer");
  if (lost()) return StoreUnavailable("its connection was lost");
  const char* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  return FromState(state != nullptr ? state : "?????");
}

absl::StatusOr<std::vector<SqlRow>> PostgresConnection::Run(const char* statement,
                                                            std::span<const SqlValue> values) {
  std::vector<std::string> numbers(values.size());
  std::vector<const char*> data(values.size(), nullptr);
  std::vector<int> sizes(values.size(), 0);
  std::vector<int> formats(values.size(), 0);  // 0: text, 1: binary
  for (size_t i = 0; i < values.size(); ++i) {
    if (const auto* integer = std::get_if<int64_t>(&values[i])) {
      numbers[i] = absl::StrCat(*integer);
      data[i] = numbers[i].c_str();
    } else if (const auto* text = std::get_if<std::string>(&values[i])) {
      data[i] = text->c_str();
    } else if (const auto* blob = std::get_if<SqlBytes>(&values[i])) {
      data[i] = blob->bytes.data();
      sizes[i] = static_cast<int>(blob->bytes.size());
      formats[i] = 1;
    }
  }
  const Result result =
      LastResult(PQsendQueryParams(handle_.get(), statement, static_cast<int>(values.size()),
                                   nullptr, data.data(), sizes.data(), formats.data(), 0));
  const ExecStatusType status = PQresultStatus(result.get());
  if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK) return Error(result.get());
  std::vector<SqlRow> rows(static_cast<size_t>(PQntuples(result.get())));
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int c = 0; c < PQnfields(result.get()); ++c) {
      rows[r].push_back(Cell(result.get(), static_cast<int>(r), c));
    }
  }
  return rows;
}

absl::Status PostgresConnection::Run(const char* statements) {
  const Result result = Execute(statements);
  const ExecStatusType status = PQresultStatus(result.get());
  if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK) return absl::OkStatus();
  return Error(result.get());
}

absl::Status PostgresConnection::Commit() {
  const Result result = Execute("COMMIT");
  if (PQresultStatus(result.get()) == PGRES_COMMAND_OK) {
    // PostgreSQL rolls back a transaction that had failed before, although the command was COMMIT.
    if (std::string_view(PQcmdStatus(result.get())) == "COMMIT") return absl::OkStatus();
    return absl::InternalError("the profile store failed: PostgreSQL rolled back");
  }
  if (lost()) return OutcomeUnknown();
  return Error(result.get());
}

void PostgresConnection::Rollback() {
  if (!lost() && PQtransactionStatus(handle_.get()) != PQTRANS_IDLE) Execute("ROLLBACK");
}

bool PostgresConnection::DrainNotifications() {
  if (PQconsumeInput(handle_.get()) == 0) return false;
  bool any = false;
  while (PGnotify* notification = PQnotifies(handle_.get())) {
    PQfreemem(notification);
    any = true;
  }
  return any;
}

bool IsSerializationFailure(const absl::Status& status) {
  return HasReason(status, kSerialization);
}

}  // namespace eta
