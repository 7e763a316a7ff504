// A profile as canonical bytes. The store keeps these bytes, and the checksum covers them.
//
// Integers and float bits are little-endian. A text is a u32 length and its bytes. In order:
// "ETAP", u32 schema version, tenant, name, i64 version, i64 create time, request id, payload
// digest, content, checksum. The content is: labels (u32 count, then pairs in order of their keys),
// fingerprints, geometry, offset, z, floor, target, reached, evidence, thresholds, u8 and z per
// head. After the evidence of schema 3 come sink blocks, shared reads, tempered special keys, least
// mass and relative threshold; with the latter there are no thresholds. Schema 4 adds confirmed
// reads, schema 5 sparse prefill, the last of them. Schema 2 has none of these,
// and ends the evidence before the retained mass; schema 1 before its intervals. The checksum is 64
// hexadecimal digits of SHA-256 over all bytes before it. Two records have the same bytes, of one
// schema, exactly if they are equal. A stored record of an older schema stays as it is and reads as
// it did.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "calibration/profiles/profile_record.h"

namespace eta {

// Sets the record's checksum too. INVALID_ARGUMENT for a record outside its limits.
absl::StatusOr<std::string> EncodeProfile(ProfileRecord& record);

// DATA_LOSS (PROFILE_CORRUPT) for bytes that fail the checksum or that EncodeProfile, of this build
// or of an older schema's, would not write. FAILED_PRECONDITION (PROFILE_SCHEMA_TOO_NEW) for sound
// bytes of a newer schema.
absl::StatusOr<ProfileRecord> DecodeProfile(std::string_view bytes);

// SHA-256 of the content alone, as bytes of `schema`, 1 to kProfileSchemaVersion, which must have a
// place for all of it. It is the same under any tenant, name and version.
absl::StatusOr<std::string> ProfileContentDigest(const ProfileContent& content,
                                                 int32_t schema = kProfileSchemaVersion);

}  // namespace eta
