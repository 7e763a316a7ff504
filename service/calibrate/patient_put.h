// Stores what a calibration made, however long the store is away: the work of minutes is not lost
// to a blip of seconds.
#pragma once

#include <chrono>
#include <stop_token>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/profiles/profile_store.h"
#include "engine/base/tenant.h"

namespace eta {

struct PutPatience {
  std::chrono::milliseconds first_wait{100};
  std::chrono::milliseconds longest_wait{5000};  // waits double up to this
};

// Whether an error of the store may pass by itself: UNAVAILABLE (STORE_UNAVAILABLE, STORE_BUSY,
// OUTCOME_UNKNOWN) and ABORTED (STORE_CONFLICT).
bool IsBlip(const absl::Status& status);

// As ProfileStore::Put, whose errors it returns; after a blip it tries again until `stop` is
// requested. Then it returns the newest error at once; OUTCOME_UNKNOWN if any try ended so, since
// the profile may have been stored. `put` must have a request id: without one a second try could
// store it twice.
absl::StatusOr<ProfilePtr> PutPatiently(ProfileStore& store, const Tenant& tenant,
                                        const PutProfile& put, const std::stop_token& stop,
                                        const PutPatience& patience = {});

}  // namespace eta
