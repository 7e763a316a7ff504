// What calls that need the profile store are told beside the store's own errors.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace eta {

// FAILED_PRECONDITION (STORE_NOT_CONFIGURED).
absl::Status NoStore();

// RESOURCE_EXHAUSTED (QUEUE_FULL): as many calls wait for the store as may.
absl::Status StoreCallsFull();

// UNAVAILABLE (DRAINING).
absl::Status ServerDraining();

// PROFILE_NOT_FOUND with the reference that found nothing, and with `field` in front of the
// sentence if it is not empty. Other statuses stay as they are.
absl::Status NamingProfile(const absl::Status& status, const std::string& reference,
                           const std::string& field = "");

}  // namespace eta
