// Page tokens: where the next page begins, opaque to clients and bound to what was listed.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/profile_store.h"

namespace eta {

// `listing` is what is listed ("names", or a profile's name), `last` the last key of the page.
std::string MakePageToken(const Tenant& tenant, std::string_view listing, std::string_view last);

// The key; empty for an empty token. INVALID_ARGUMENT (page_token) for one that was not made for
// this tenant and listing.
absl::StatusOr<std::string> ReadPageToken(const Tenant& tenant, std::string_view listing,
                                          std::string_view token);

// INVALID_ARGUMENT (page_size) outside 1 to 1000.
absl::Status CheckPageSize(const ProfilePage& page);

}  // namespace eta
