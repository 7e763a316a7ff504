// What every fast backend asks of its arguments. InvalidArgument names the field and the limit.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace eta {

// float32, float16 or bfloat16.
bool IsFloat(DType dtype);

// Parts of Backend::Pack: at least one, none empty, equal columns, floating-point.
absl::Status CheckParts(std::span<const HostMatrix> parts);

// The cache holds float32, float16, bfloat16 or float8_e4m3; its index float16 or int8.
absl::Status CheckCacheTypes(const KvGeometry& geometry);

// head_dim a multiple of 16 up to 256, block_size up to 128, a sub-block that divides it, and
// CheckCacheTypes().
absl::Status CheckGeometry(const KvGeometry& geometry);

}  // namespace eta
