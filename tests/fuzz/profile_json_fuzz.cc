// Any bytes as a profile file: refused, or a profile that can be stored and that comes back to the
// bit. (Few inputs get past content_sha256; profile_blob_fuzz makes files that do.)
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "calibration/profiles/profile_blob.h"
#include "calibration/profiles/profile_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto profile = eta::ProfileFromJson(text);
  if (!profile.ok()) {
    if (profile.status().message().empty()) std::abort();
    return 0;
  }
  const auto again = eta::ProfileToJson(*profile);
  if (!again.ok()) std::abort();
  const auto read = eta::ProfileFromJson(*again);
  if (!read.ok() || !(*read == *profile)) std::abort();

  eta::ProfileRecord record{.tenant = *eta::Tenant::Parse("acme"),
                            .name = profile->name,
                            .version = profile->version,
                            .create_time_us = profile->create_time_us,
                            .request_id = "",
                            .payload_digest = "",
                            .content = profile->content,
                            .checksum = ""};
  const auto blob = eta::EncodeProfile(record);
  if (!blob.ok()) std::abort();
  const auto decoded = eta::DecodeProfile(*blob);
  if (!decoded.ok() || !(*decoded == record)) std::abort();
  return 0;
}
