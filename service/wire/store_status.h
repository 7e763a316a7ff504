// Errors of calls that need the profile store, beside the store's own errors.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace eta {

// FAILED_PRECONDITION (STORE_NOT_CONFIGURED).
absl::Status NoStore();

// RESOURCE_EXHAUSTED (QUEUE_FULL): the most calls that may wait for the store do.
absl::Status StoreCallsFull();

// UNAVAILABLE (DRAINING).
absl::Status ServerDraining();

// PROFILE_NOT_FOUND with the reference that found nothing. `field`, if it is not empty, is put in
// front of the sentence, of PROFILE_MISMATCH too. Other statuses stay unchanged.
absl::Status NamingProfile(const absl::Status& status, const std::string& reference,
                           const std::string& field = "");

}  // namespace eta
