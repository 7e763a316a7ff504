// Rows of eta_profiles as records, inside a transaction of their tenant.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/profiles/profile_store.h"
#include "calibration/profiles/store/sql/sql_database.h"

namespace eta {

using SqlRows = absl::StatusOr<std::vector<SqlRow>>;

int64_t Integer(const SqlValue& value);  // 0 for another type
std::string Text(const SqlValue& value);
SqlValue TextOrNull(const std::string& text);

// DATA_LOSS (PROFILE_CORRUPT): the columns of a row and its blob do not belong together.
absl::Status RowCorrupt();

// The model whose versions count: of `fingerprint`; empty: the served one. Empty: every model.
std::string CountedModel(const ServedModel& served, const std::string& fingerprint = "");

// The record of one version. NOT_FOUND (PROFILE_NOT_FOUND), also if it was deleted. DATA_LOSS
// (PROFILE_CORRUPT), also if its columns say another thing than its blob.
absl::StatusOr<ProfilePtr> VersionRecord(SqlSession& session, const Tenant& tenant,
                                         const std::string& name, int64_t version);

// The record that a request id was used for; null if it was not used yet. ALREADY_EXISTS
// (REQUEST_ID_REUSED) if it was used for another request.
absl::StatusOr<ProfilePtr> RequestRecord(SqlSession& session, const Tenant& tenant,
                                         const PutProfile& put);

}  // namespace eta
