#include "calibration/profiles/store/sql/sql_aliases.h"

#include <algorithm>
#include <tuple>

#include "calibration/profiles/store/sql/sql_versions.h"
#include "calibration/profiles/store/store_error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr int64_t kMaxAliases = 16;  // of a name and a model

// Removes the alias for the model of the row.
absl::Status RemoveAlias(SqlSession& session, const Tenant& tenant, const std::string& name,
                         const AliasRow& row) {
  return session
      .Run(
          "DELETE FROM eta_aliases"
          " WHERE tenant = $1 AND name = $2 AND alias = $3 AND model_fingerprint = $4",
          std::vector<SqlValue>{tenant.id(), name, row.alias, row.fingerprint})
      .status();
}

}  // namespace

absl::StatusOr<std::vector<AliasRow>> AliasRows(SqlSession& session, const Tenant& tenant,
                                                const std::string& name) {
  ASSIGN_OR_RETURN(const std::vector<SqlRow> rows,
                   session.Run("SELECT alias, version, model_fingerprint FROM eta_aliases"
                               " WHERE tenant = $1 AND name = $2 ORDER BY alias, version",
                               std::vector<SqlValue>{tenant.id(), name}));
  std::vector<AliasRow> aliases;
  for (const SqlRow& row : rows) {
    aliases.push_back(
        {.alias = Text(row[0]), .version = Integer(row[1]), .fingerprint = Text(row[2])});
  }
  return aliases;
}

int64_t AliasedVersion(const std::vector<AliasRow>& rows, const std::string& alias,
                       const std::string& model) {
  // An alias that was set for the model goes before one that was set for every model; then the
  // highest version.
  std::tuple<bool, int64_t> best;
  for (const AliasRow& row : rows) {
    const bool of_model = !row.fingerprint.empty() && row.fingerprint == model;
    const bool counts = model.empty() || row.fingerprint.empty() || of_model;
    if (row.alias == alias && counts) best = std::max(best, std::tuple(of_model, row.version));
  }
  return std::get<int64_t>(best);
}

absl::StatusOr<SqlEnd> NameVersion(SqlSession& session, const Tenant& tenant, const PutAlias& put) {
  ASSIGN_OR_RETURN(const auto rows, AliasRows(session, tenant, put.name));
  ASSIGN_OR_RETURN(const auto named, FindVersion(session, tenant, put.name, put.version));
  if (!named) return NoSuchProfile();
  // A version whose model is not known is named for every model.
  const std::string& model = named->fingerprint;
  const int64_t current = AliasedVersion(rows, put.alias, model);
  if (put.expected_version && *put.expected_version != current) return VersionMismatch(current);
  if (current == put.version) return SqlEnd::kRollback;
  int64_t aliases = 0;  // of this model
  for (const AliasRow& row : rows) {
    const bool of_model = model.empty() || row.fingerprint.empty() || row.fingerprint == model;
    if (!of_model) continue;
    ++aliases;
    if (row.alias == put.alias) {
      RETURN_IF_ERROR(RemoveAlias(session, tenant, put.name, row));
    }
  }
  if (current == 0 && aliases >= kMaxAliases) {
    return OverProfileQuota("aliases of a profile", kMaxAliases);
  }
  const SqlRows set = session.Run(
      "INSERT INTO eta_aliases (tenant, name, alias, model_fingerprint, version)"
      " VALUES ($1, $2, $3, $4, $5)",
      std::vector<SqlValue>{tenant.id(), put.name, put.alias, model, put.version});
  RETURN_IF_ERROR(set.status());
  return SqlEnd::kCommit;
}

absl::StatusOr<SqlEnd> UnnameVersions(SqlSession& session, const Tenant& tenant,
                                      const PutAlias& put) {
  ASSIGN_OR_RETURN(const auto rows, AliasRows(session, tenant, put.name));
  int64_t named = 0;
  bool removed = false;
  for (const AliasRow& row : rows) {
    if (row.alias != put.alias) continue;
    named = std::max(named, row.version);
    if (put.expected_version && *put.expected_version != row.version) continue;
    removed = true;
    RETURN_IF_ERROR(RemoveAlias(session, tenant, put.name, row));
  }
  if (removed) return SqlEnd::kCommit;
  const bool other = named > 0 || put.expected_version.value_or(0) != 0;
  return other ? VersionMismatch(named) : NoSuchProfile();
}

}  // namespace eta
