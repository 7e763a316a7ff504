// The interface of a database to the SQL profile store: transactions of one tenant, and the news.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/tenant.h"

namespace eta {

struct SqlBytes {
  std::string bytes;
};
using SqlValue = std::variant<std::monostate, int64_t, std::string, SqlBytes>;  // first: NULL
using SqlRow = std::vector<SqlValue>;

// One open transaction. Statements name their parameters $1, $2, ... as PostgreSQL does. Values are
// bound, never pasted into the text.
class SqlSession {
 public:
  virtual ~SqlSession() = default;
  virtual absl::StatusOr<std::vector<SqlRow>> Run(const char* statement,
                                                  std::span<const SqlValue> values) = 0;
};

enum class SqlEnd { kCommit, kRollback };

class SqlDatabase {
 public:
  virtual ~SqlDatabase() = default;

  // Runs one transaction that sees one state of the database and writes nothing. It never waits for
  // a writer.
  using ReadBody = std::function<absl::Status(SqlSession&)>;
  virtual absl::Status Read(const Tenant& tenant, const ReadBody& body) = 0;

  // Runs one transaction without another writer beside it in any process. It is durable once this
  // returns OK; an error of `body` rolls it back. `body` may run more than once. UNAVAILABLE
  // (OUTCOME_UNKNOWN) if only the answer to the commit was lost.
  using WriteBody = std::function<absl::StatusOr<SqlEnd>(SqlSession&)>;
  virtual absl::Status Write(const Tenant& tenant, const WriteBody& body) = 0;

  // For the one thread that polls for changes: runs `body` on tables that belong to no tenant if
  // the database may have changed since the last call that said OK.
  virtual absl::Status Poll(const ReadBody& body) = 0;
  // A file descriptor that has something to read once a poll pays off, or -1. Same thread.
  virtual int News() const { return -1; }

  virtual absl::Status Health() const = 0;
};

}  // namespace eta
