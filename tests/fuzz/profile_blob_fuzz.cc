// Any bytes as a stored profile, with their own checksum and with the right one: refused, or a
// record that encodes to these very bytes, and that comes back from JSON to the bit.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "calibration/profiles/profile_blob.h"
#include "calibration/profiles/profile_json.h"
#include "engine/base/sha256.h"

namespace {

constexpr size_t kChecksumBytes = 64;

void Check(std::string_view bytes) {
  auto record = eta::DecodeProfile(bytes);
  if (!record.ok()) return;
  const eta::ProfileRecord read = *record;
  const auto again = eta::EncodeProfile(*record);
  if (!again.ok()) std::abort();
  if (*again != bytes || !(*record == read)) std::abort();
  const auto decoded = eta::DecodeProfile(*again);
  if (!decoded.ok() || !(decoded->content == read.content)) std::abort();

  const eta::PortableProfile portable{
      .name = read.name, .version = read.version, .create_time_us = 1, .content = read.content};
  const auto text = eta::ProfileToJson(portable);
  if (!text.ok()) std::abort();
  const auto parsed = eta::ProfileFromJson(*text);
  if (!parsed.ok()) std::abort();
  eta::ProfileRecord back = read;
  back.content = parsed->content;
  if (parsed->name != read.name || *eta::EncodeProfile(back) != *again) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Check(bytes);
  if (size < kChecksumBytes) return 0;
  std::string sealed(bytes.substr(0, size - kChecksumBytes));
  sealed += *eta::Sha256Hex(sealed);
  Check(sealed);
  return 0;
}
