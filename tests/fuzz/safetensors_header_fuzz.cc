// Any bytes as a safetensors file: refused, or a header whose tensors cover the data exactly.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/base/checked.h"
#include "engine/checkpoint/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto header = eta::ParseSafetensorsHeader(bytes, size);
  if (!header.ok()) return 0;
  uint64_t covered = 0;
  for (const auto& [name, info] : header->tensors) {
    if (info.end < info.begin || header->data_begin + info.end > size) std::abort();
    if (eta::CheckedBytes(info.shape, eta::SizeOf(info.dtype)) != info.bytes()) std::abort();
    covered += info.bytes();
  }
  if (header->data_begin + covered != size) std::abort();
  return 0;
}
