// A profile as canonical bytes. The store keeps these bytes, and the checksum covers them.
//
// Integers and float bits are little-endian. A text is a u32 length and its bytes. In order:
// "ETAP", u32 schema version, tenant, name, i64 version, i64 create time, request id, payload
// digest, content, checksum. The content is: labels (u32 count, then pairs in order of their keys),
// fingerprints, the numbers and settings in the order of VisitNumbers, thresholds (none with a
// relative one), u8 and z per head. The checksum is 64 hexadecimal digits of SHA-256 over all bytes
// before it. Two records have the same bytes exactly if they are equal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "calibration/profiles/profile_record.h"

namespace eta {

// Sets the record's checksum too. INVALID_ARGUMENT for a record outside its limits.
absl::StatusOr<std::string> EncodeProfile(ProfileRecord& record);

// DATA_LOSS (PROFILE_CORRUPT) for bytes that fail the checksum or that EncodeProfile would not
// write. FAILED_PRECONDITION (PROFILE_SCHEMA_MISMATCH) for sound bytes of another schema, and of
// that of the other kind of thresholds.
absl::StatusOr<ProfileRecord> DecodeProfile(std::string_view bytes);

// SHA-256 of the content alone. It is the same under any tenant, name and version.
absl::StatusOr<std::string> ProfileContentDigest(const ProfileContent& content);

}  // namespace eta
