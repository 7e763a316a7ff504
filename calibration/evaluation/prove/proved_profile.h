// The profile that was proved, with its proof as a label: what a store keeps, and what `etactl
// profiles get` shows.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/profiles/profile_json.h"

namespace eta {

// The profile of `profile:FILE`. Nothing for other ways of attending, for thresholds that are no
// exported profile, and for a profile with settings of its own behind it: what is proved is then
// not the profile. InvalidArgument (`labels`) for one that has no room for another label.
absl::StatusOr<std::optional<PortableProfile>> ProfileToProve(const std::string& attention);

// Writes it with the label `proof`, in the place of one that it has.
absl::Status WriteProvedProfile(PortableProfile profile, const std::string& label,
                                const std::string& path);

}  // namespace eta
