#include "kernels/cuda/targets.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/rows/sampling.h"

namespace eta::cuda {
namespace {

// Copies [rows, cols] of some rows.
void CopyRows(const Results& results, int64_t result, std::span<const PackedStep::Rows> some,
              int32_t cols, int32_t* to) {
  if (to == nullptr) return;
  const auto* from = reinterpret_cast<const int32_t*>(results.HostAt(result));
  for (const PackedStep::Rows& rows : some) {
    const int64_t begin = int64_t{rows.begin} * cols;
    std::copy_n(from + begin, int64_t{rows.count} * cols, to + begin);
  }
}

}  // namespace

void CountsTarget::Take(const Results& results, const CountedRows& rows) const {
  const auto& some = kind == RowKind::kDecode ? rows.decode : rows.sparse_prefill;
  CopyRows(results, tokens_attended, some, num_query_heads, counts.tokens_attended);
  CopyRows(results, tokens_read, some, num_kv_heads, counts.tokens_read);
  CopyRows(results, values_read, some, num_kv_heads, counts.values_read);
}

void RecallTarget::Take(const Results& results, const CountedRows& /*rows*/) const {
  const auto* counted = reinterpret_cast<const int64_t*>(results.HostAt(above));
  for (int32_t h = 0; h < num_query_heads; ++h) {
    above_host[h] += counted[h];
    above_admitted_host[h] += counted[num_query_heads + h];
  }
}

void ShadowTarget::Take(const Results& results, const CountedRows& /*rows*/) const {
  std::memcpy(mass_host, results.HostAt(mass), count * sizeof(float));
  std::memcpy(error_host, results.HostAt(error), count * sizeof(float));
}

void ExpertsTarget::Take(const Results& results, const CountedRows& /*rows*/) const {
  std::memcpy(rows_of_experts, results.HostAt(counts),
              static_cast<size_t>(num_experts) * sizeof(int32_t));
}

void SampleTarget::Take(const Results& from, const CountedRows& /*rows*/) const {
  Unpack(from.HostAt(results), num_rows, rows);
}

}  // namespace eta::cuda
