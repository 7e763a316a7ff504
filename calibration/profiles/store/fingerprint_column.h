// The column of schema version 3 that names each version's model, filled for the rows of before.
#pragma once

#include "absl/status/status.h"
#include "calibration/profiles/store/sql/sql_database.h"

namespace eta {

// Copies the model's fingerprint from each record to its row, for all tenants: the session must see
// them all. A record that cannot be read keeps an empty one.
absl::Status FillFingerprints(SqlSession& session);

}  // namespace eta
