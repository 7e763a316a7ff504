// The aliases of one profile in an SQL store: statements inside a transaction of its tenant.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/profiles/profile_store.h"
#include "calibration/profiles/store/sql/sql_database.h"
#include "calibration/profiles/store/sql/sql_records.h"

namespace eta {

struct AliasRow {
  std::string alias;
  int64_t version = 0;
  std::string fingerprint;  // of the model for which it names that version; empty: for every model
};
// Every alias of a name, sorted by alias, then version.
absl::StatusOr<std::vector<AliasRow>> AliasRows(SqlSession& session, const Tenant& tenant,
                                                const std::string& name);
// The version that an alias names for a model; empty: for any.
int64_t AliasedVersion(const std::vector<AliasRow>& rows, const std::string& alias,
                       const std::string& model);

// ProfileStore::SetAlias for a version, and for the removal. kRollback: nothing is to be changed.
absl::StatusOr<SqlEnd> NameVersion(SqlSession& session, const Tenant& tenant, const PutAlias& put);
absl::StatusOr<SqlEnd> UnnameVersions(SqlSession& session, const Tenant& tenant,
                                      const PutAlias& put);

}  // namespace eta
