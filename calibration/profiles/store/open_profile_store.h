// Opens the store that a URL names.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "calibration/profiles/profile_store.h"

namespace eta {

// `url` is "sqlite:PATH" or a path, "postgresql://..." or "postgres://...", or "dir:PATH".
// INVALID_ARGUMENT naming profile_store. NOT_FOUND for a missing folder. DATA_LOSS for a file that
// is corrupt or not a profile store; the file is left as it is. FAILED_PRECONDITION for a file of a
// newer schema. A PostgreSQL server that cannot be reached yet is no error: calls return
// UNAVAILABLE until it can.
absl::StatusOr<std::unique_ptr<ProfileStore>> OpenProfileStore(
    const std::string& url, const ProfileStoreOptions& options = {});

}  // namespace eta
