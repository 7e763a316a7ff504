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

// The fingerprints under which versions of one model stand in the store.
struct ModelFingerprints {
  std::string now;     // what new rows say; empty: of every model
  std::string former;  // ServedModel's; equal to `now` where there is none

  bool every_model() const { return now.empty(); }
  // The fingerprint of a row as it is called now.
  std::string Renamed(const std::string& fingerprint) const {
    return fingerprint == former ? now : fingerprint;
  }
  // Where they are of every model: of the model of `fingerprint` alone.
  ModelFingerprints Only(const std::string& fingerprint) const {
    return every_model() ? ModelFingerprints{.now = fingerprint, .former = fingerprint} : *this;
  }
};
// Of the model of `fingerprint`; empty: of the served model.
ModelFingerprints FingerprintsOf(const ServedModel& served, const std::string& fingerprint = "");

// The record of one version. NOT_FOUND (PROFILE_NOT_FOUND), also if it was deleted. DATA_LOSS
// (PROFILE_CORRUPT), also if its columns say another thing than its blob.
absl::StatusOr<ProfilePtr> VersionRecord(SqlSession& session, const Tenant& tenant,
                                         const std::string& name, int64_t version,
                                         const ServedModel& served);

// The record that a request id was used for; null if it was not used yet. ALREADY_EXISTS
// (REQUEST_ID_REUSED) if it was used for another request.
absl::StatusOr<ProfilePtr> RequestRecord(SqlSession& session, const Tenant& tenant,
                                         const PutProfile& put, const ServedModel& served);

}  // namespace eta
