// The limits that every fast backend sets to its arguments. InvalidArgument names the field and the
// limit.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace eta {

// True for float32, float16 and bfloat16.
bool IsFloat(DType dtype);

// Checks the parts of Backend::Pack: at least one, none empty, equal columns, floating-point; rows
// of blocks are whole.
absl::Status CheckParts(std::span<const HostMatrix> parts);

// Checks the types: the cache float32, float16, bfloat16 or float8_e4m3; the index float16 or int8,
// of kind kOutlier int8.
absl::Status CheckCacheTypes(const KvGeometry& geometry);

// Checks the geometry: head_dim a multiple of 16 up to 256; block_size up to 128 and a multiple of
// the sub-block; the types as CheckCacheTypes() does.
absl::Status CheckGeometry(const KvGeometry& geometry);

// Checks the masks of the rows: empty, or MaskWords(V) words.
absl::Status CheckSample(const SampleParams& params);

}  // namespace eta
