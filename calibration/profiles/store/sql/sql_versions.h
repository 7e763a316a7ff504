// Statements on the versions of one profile in an SQL store that read no records, inside a
// transaction of its tenant. A version number of 0 means that there is none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/profiles/store/sql/sql_database.h"
#include "calibration/profiles/store/sql/sql_records.h"

namespace eta {

// The highest version ever, deleted ones too.
absl::StatusOr<int64_t> LastVersion(SqlSession& session, const Tenant& tenant,
                                    const std::string& name);
// The highest version that exists, staged or not, of whatever model.
absl::StatusOr<int64_t> HighestVersion(SqlSession& session, const Tenant& tenant,
                                       const std::string& name);
// The highest version of a model that is not staged. A version whose model is not known, since it
// is older than the column (store schema 3), counts for every model: nothing is served in its
// place.
absl::StatusOr<int64_t> NewestVersion(SqlSession& session, const Tenant& tenant,
                                      const std::string& name, const std::string& model);

struct VersionState {
  std::string fingerprint;
  bool staged = false;
};
// Absent: there is no such version.
absl::StatusOr<std::optional<VersionState>> FindVersion(SqlSession& session, const Tenant& tenant,
                                                        const std::string& name, int64_t version);

struct SurplusVersions {
  std::vector<int64_t> versions;
  int64_t bytes = 0;
};
// The versions of a model, staged or promoted, that no alias names, but for the `keep` highest.
absl::StatusOr<SurplusVersions> FindSurplus(SqlSession& session, const Tenant& tenant,
                                            const std::string& name, const std::string& model,
                                            bool staged, int64_t keep);

// Drops the version's record; its number and its request id stay.
absl::Status DropVersion(SqlSession& session, const Tenant& tenant, const std::string& name,
                         int64_t version);

}  // namespace eta
