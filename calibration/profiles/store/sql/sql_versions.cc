#include "calibration/profiles/store/sql/sql_versions.h"

#include <algorithm>

#include "engine/base/status_macros.h"

namespace eta {
namespace {

// The number in the first column of the first row.
absl::StatusOr<int64_t> Number(SqlSession& session, const char* statement,
                               const std::vector<SqlValue>& values) {
  ASSIGN_OR_RETURN(const std::vector<SqlRow> rows, session.Run(statement, values));
  return rows.empty() ? 0 : Integer(rows.front()[0]);
}

}  // namespace

absl::StatusOr<int64_t> LastVersion(SqlSession& session, const Tenant& tenant,
                                    const std::string& name) {
  return Number(session, "SELECT MAX(version) FROM eta_profiles WHERE tenant = $1 AND name = $2",
                {tenant.id(), name});
}

absl::StatusOr<int64_t> HighestVersion(SqlSession& session, const Tenant& tenant,
                                       const std::string& name) {
  return Number(session,
                "SELECT version FROM eta_profiles WHERE tenant = $1 AND name = $2"
                " AND record IS NOT NULL ORDER BY version DESC LIMIT 1",
                {tenant.id(), name});
}

// One look-up for each fingerprint, however many versions there are: every Put asks this while
// other writes wait.
absl::StatusOr<int64_t> NewestVersion(SqlSession& session, const Tenant& tenant,
                                      const std::string& name, const std::string& model) {
  if (model.empty()) {
    return Number(session,
                  "SELECT version FROM eta_profiles WHERE tenant = $1 AND name = $2"
                  " AND record IS NOT NULL AND staged = 0 ORDER BY version DESC LIMIT 1",
                  {tenant.id(), name});
  }
  int64_t newest = 0;
  for (const std::string& fingerprint : {model, std::string()}) {
    ASSIGN_OR_RETURN(const int64_t version,
                     Number(session,
                            "SELECT MAX(version) FROM eta_profiles WHERE tenant = $1 AND name = $2"
                            " AND model_fingerprint = $3 AND staged = 0 AND record IS NOT NULL",
                            {tenant.id(), name, fingerprint}));
    newest = std::max(newest, version);
  }
  return newest;
}

absl::StatusOr<std::optional<VersionState>> FindVersion(SqlSession& session, const Tenant& tenant,
                                                        const std::string& name, int64_t version) {
  ASSIGN_OR_RETURN(
      const std::vector<SqlRow> rows,
      session.Run("SELECT model_fingerprint, staged FROM eta_profiles"
                  " WHERE tenant = $1 AND name = $2 AND version = $3 AND record IS NOT NULL",
                  std::vector<SqlValue>{tenant.id(), name, version}));
  if (rows.empty()) return std::nullopt;
  return VersionState{.fingerprint = Text(rows.front()[0]),
                      .staged = Integer(rows.front()[1]) != 0};
}

absl::StatusOr<SurplusVersions> FindSurplus(SqlSession& session, const Tenant& tenant,
                                            const std::string& name, const std::string& model,
                                            bool staged, int64_t keep) {
  ASSIGN_OR_RETURN(
      const std::vector<SqlRow> rows,
      session.Run("SELECT version, LENGTH(record) FROM eta_profiles"
                  " WHERE tenant = $1 AND name = $2 AND record IS NOT NULL AND staged = $3"
                  " AND model_fingerprint = $4 AND version NOT IN"
                  "  (SELECT version FROM eta_aliases WHERE tenant = $1 AND name = $2)"
                  " ORDER BY version DESC",
                  std::vector<SqlValue>{tenant.id(), name, int64_t{staged ? 1 : 0}, model}));
  SurplusVersions surplus;
  for (size_t i = static_cast<size_t>(keep); i < rows.size(); ++i) {
    surplus.versions.push_back(Integer(rows[i][0]));
    surplus.bytes += Integer(rows[i][1]);
  }
  return surplus;
}

absl::Status DropVersion(SqlSession& session, const Tenant& tenant, const std::string& name,
                         int64_t version) {
  return session
      .Run(
          "UPDATE eta_profiles SET record = NULL"
          " WHERE tenant = $1 AND name = $2 AND version = $3",
          std::vector<SqlValue>{tenant.id(), name, version})
      .status();
}

}  // namespace eta
