#include "calibration/profiles/store/fingerprint_column.h"

#include <cstdint>
#include <string>
#include <vector>

#include "calibration/profiles/profile_blob.h"
#include "calibration/profiles/store/sql/sql_records.h"

namespace eta {
namespace {

constexpr int64_t kRowsAtOnce = 16;  // with records of 8 MB at most

}  // namespace

absl::Status FillFingerprints(SqlSession& session) {
  std::vector<SqlValue> key = {std::string(), std::string(), int64_t{0}};  // of the last row
  while (true) {
    std::vector<SqlValue> from = key;
    from.emplace_back(kRowsAtOnce);
    const SqlRows rows = session.Run(
        "SELECT tenant, name, version, record FROM eta_profiles"
        " WHERE (tenant, name, version) > ($1, $2, $3) AND record IS NOT NULL"
        " ORDER BY tenant, name, version LIMIT $4",
        from);
    if (!rows.ok()) return rows.status();
    if (rows->empty()) return absl::OkStatus();
    for (const SqlRow& row : *rows) {
      key = {row[0], row[1], row[2]};
      const SqlBytes* blob = std::get_if<SqlBytes>(&row[3]);
      const auto record = blob != nullptr ? DecodeProfile(blob->bytes)
                                          : absl::StatusOr<ProfileRecord>(RowCorrupt());
      if (!record.ok()) continue;
      std::vector<SqlValue> values = key;
      values.emplace_back(record->content.model_fingerprint);
      const SqlRows set = session.Run(
          "UPDATE eta_profiles SET model_fingerprint = $4"
          " WHERE tenant = $1 AND name = $2 AND version = $3",
          values);
      if (!set.ok()) return set.status();
    }
  }
}

}  // namespace eta
