// A profile as JSON, for export, import and folders of profiles (profile_format.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "calibration/profiles/profile_record.h"

namespace eta {

inline constexpr size_t kMaxProfileJsonBytes = size_t{4} << 20;

// The contents of a profile file. There is no tenant, since whoever imports the file owns the copy,
// and no request.
struct PortableProfile {
  std::string name;
  int64_t version = 0;         // at its origin, from 1 on
  int64_t create_time_us = 0;  // at its origin, not negative
  ProfileContent content;
  friend bool operator==(const PortableProfile&, const PortableProfile&) = default;
};

// Numbers come back to the bit. INVALID_ARGUMENT for a profile that ProfileFromJson would refuse.
absl::StatusOr<std::string> ProfileToJson(const PortableProfile& profile);

// INVALID_ARGUMENT, naming the field, for a field that is unknown, missing, repeated, of another
// type or outside its limits, and for contents that do not match `content_sha256`.
// FAILED_PRECONDITION (PROFILE_SCHEMA_MISMATCH) for another schema.
absl::StatusOr<PortableProfile> ProfileFromJson(std::string_view text);

// Of a profile of another schema what says which one it is: name, version, time and model. Errors
// as above, if it does not say so.
absl::StatusOr<PortableProfile> HeaderFromJson(std::string_view text);

}  // namespace eta
