// One decode step of one sequence and layer through a backend's own ops: append K and V to a paged
// cache, copy frozen thresholds, select blocks, attend. Golden cases judge a backend by it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace eta {

// Shapes use the letters of kernels/batch.h. The last token is the decode row's own.
struct KernelCase {
  KvGeometry geometry;
  int32_t num_query_heads = 0;
  int32_t num_tokens = 0;  // T
  Gate gate = Gate::kSilu;
  float beta = 0.0f;
  AttentionOptions attention;
  std::vector<float> q;                 // [HQ, d]
  std::vector<float> k;                 // [T, HKV, d]; the cache rounds it to its type
  std::vector<float> v;                 // [T, HKV, d]
  std::vector<float> thresholds;        // [HQ]
  std::vector<float> metric = {};       // [HKV, d, d] of kOutlier; empty: identity
  std::vector<uint64_t> tempered = {};  // a bit per key; may be shorter
};

struct KernelResult {
  std::vector<float> out;                   // [HQ, d]
  std::vector<uint8_t> used;                // [HQ, N]: 1 where the head attends to the full block
  std::vector<int64_t> tokens_per_head;     // [HQ]
  std::vector<int64_t> tokens_per_kv_head;  // [HKV]
};

// Reads tensors q, k, v and tau of a safetensors file, and parameters of its metadata. k and v have
// the cache's type, or float32 for a cache of float8_e4m3. There may be tensors metric [HKV, d, d],
// of the index's kind outlier, and special [T], which is 1 at keys that are tempered. These
// parameters may be missing: index_dtype (float16), index (moment) and record, what its records are
// rounded to (int8 of kind outlier; float32 on the reference). InvalidArgument, naming the field
// and its limit, for anything else missing, out of range, of another shape or not finite.
absl::StatusOr<KernelCase> ReadKernelCase(const std::string& path);

// InvalidArgument for a geometry that the backend does not support.
absl::StatusOr<KernelResult> RunKernelCase(const KernelCase& kernel_case, Backend& backend);

// Writes tensors out (float64), used (uint8), tokens_per_head and tokens_per_kv_head (int64); with
// own reads also admitted, which is used then.
absl::Status WriteKernelResult(const KernelCase& kernel_case, const KernelResult& result,
                               const std::string& path);

}  // namespace eta
