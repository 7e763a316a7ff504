// A record as the device stores it, unpacked on the host: for tests and inspection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/device/kv_tile.h"

namespace eta::cuda {

// `record`: that of all KV heads, as kv_tile.h lays it out. `centre` [d]: the mean key that an
// outlier record is rounded about.
BlockRecord UnpackRecord(const KvTile& tile, std::span<const std::byte> record, int32_t kv_head,
                         std::span<const float> centre);

}  // namespace eta::cuda
