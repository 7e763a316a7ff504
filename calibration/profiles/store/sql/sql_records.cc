#include "calibration/profiles/store/sql/sql_records.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/profiles/profile_blob.h"
#include "calibration/profiles/store/store_error.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

// Selects rows for Record().
constexpr char kSelectRecord[] =
    "SELECT name, version, create_time_us, request_id, payload_digest, record, model_fingerprint,"
    " staged FROM eta_profiles WHERE tenant = $1";

// The record of a row, whose blob must say what its columns say.
absl::StatusOr<ProfilePtr> Record(const Tenant& tenant, const SqlRow& row) {
  const SqlBytes* blob = std::get_if<SqlBytes>(&row[5]);
  if (blob == nullptr) return NoSuchProfile();
  ASSIGN_OR_RETURN(ProfileRecord record, DecodeProfile(blob->bytes));
  const std::string fingerprint = Text(row[6]);
  if (record.tenant != tenant || record.name != Text(row[0]) || record.version != Integer(row[1]) ||
      record.create_time_us != Integer(row[2]) || record.request_id != Text(row[3]) ||
      record.payload_digest != Text(row[4]) ||
      (!fingerprint.empty() && record.content.model_fingerprint != fingerprint)) {
    return RowCorrupt();
  }
  record.staged = Integer(row[7]) != 0;
  return std::make_shared<const ProfileRecord>(std::move(record));
}

}  // namespace

int64_t Integer(const SqlValue& value) {
  const int64_t* integer = std::get_if<int64_t>(&value);
  return integer != nullptr ? *integer : 0;
}

std::string Text(const SqlValue& value) {
  const std::string* text = std::get_if<std::string>(&value);
  return text != nullptr ? *text : std::string();
}

SqlValue TextOrNull(const std::string& text) {
  return text.empty() ? SqlValue() : SqlValue(text);
}

absl::Status RowCorrupt() {
  return MakeError(absl::StatusCode::kDataLoss, "a stored profile is in another's place",
                   {.reason = "PROFILE_CORRUPT"});
}

std::string CountedModel(const ServedModel& served, const std::string& fingerprint) {
  return served.fingerprint.empty() || fingerprint.empty() ? served.fingerprint : fingerprint;
}

absl::StatusOr<ProfilePtr> VersionRecord(SqlSession& session, const Tenant& tenant,
                                         const std::string& name, int64_t version) {
  ASSIGN_OR_RETURN(
      const std::vector<SqlRow> rows,
      session.Run(absl::StrCat(kSelectRecord, " AND name = $2 AND version = $3").c_str(),
                  std::vector<SqlValue>{tenant.id(), name, version}));
  if (rows.empty()) return NoSuchProfile();
  return Record(tenant, rows.front());
}

absl::StatusOr<ProfilePtr> RequestRecord(SqlSession& session, const Tenant& tenant,
                                         const PutProfile& put) {
  if (put.request_id.empty()) return ProfilePtr();
  ASSIGN_OR_RETURN(const std::vector<SqlRow> rows,
                   session.Run(absl::StrCat(kSelectRecord, " AND request_id = $2").c_str(),
                               std::vector<SqlValue>{tenant.id(), put.request_id}));
  if (rows.empty()) return ProfilePtr();
  const SqlRow& row = rows.front();
  if (Text(row[0]) != put.name || Text(row[4]) != put.payload_digest) return RequestIdReused();
  return Record(tenant, row);
}

}  // namespace eta
