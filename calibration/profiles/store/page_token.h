// Page tokens say where the next page begins. They are opaque to clients and bound to the listing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "calibration/profiles/profile_store.h"

namespace eta {

// `listing` is the listing's subject ("names", or a profile's name). `last` is the last key of the
// page.
std::string MakePageToken(const Tenant& tenant, std::string_view listing, std::string_view last);

// The start of a page. INVALID_ARGUMENT: page_size is negative; page_token was not made for this
// tenant and listing.
//
// For names: the last name of the page before; empty for the first page.
absl::StatusOr<std::string> ReadNamePage(const Tenant& tenant, const ProfilePage& page);
// For a profile's versions, newest first: the versions of the page are below the returned one.
absl::StatusOr<int64_t> ReadVersionPage(const Tenant& tenant, const std::string& name,
                                        const ProfilePage& page);

}  // namespace eta
