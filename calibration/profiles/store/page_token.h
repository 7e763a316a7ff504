// Page tokens: where the next page begins, opaque to clients and bound to what was listed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "calibration/profiles/profile_store.h"

namespace eta {

// `listing` is what is listed ("names", or a profile's name), `last` the last key of the page.
std::string MakePageToken(const Tenant& tenant, std::string_view listing, std::string_view last);

// What a page asks for. INVALID_ARGUMENT: page_size outside 1 to 1000; page_token that was not made
// for this tenant and listing.
//
// Of names: the name that the page before ended with; empty for the first page.
absl::StatusOr<std::string> ReadNamePage(const Tenant& tenant, const ProfilePage& page);
// Of a profile's versions, newest first: those of the page are below the returned one.
absl::StatusOr<int64_t> ReadVersionPage(const Tenant& tenant, const std::string& name,
                                        const ProfilePage& page);

}  // namespace eta
