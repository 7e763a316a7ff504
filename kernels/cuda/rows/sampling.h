// The Sample op on the device (SampleRow in kernels/params/sampling.h).
//
// The rows travel to the device as one blob and the results back as one blob, so that one captured
// launch serves every step of a bucket. Both blobs begin with a part whose size depends on the
// bucket alone. The parts of varying length (counts, bias, masks; alternatives) follow it. The
// device finds them by offsets that it reads.
//
// Order of sums. A token's weight exp((logit - best) / temperature) is computed in double
// precision, to a relative 1e-14. It is rounded to an integer number of units of 2^-S, S = min(48,
// 63 - ceil(log2 V)). Sums of weights are sums of these integers, so they are exact, and the same
// in any order of threads. So every cumulative sum that top_p, min_p and the draw look at is exact
// for weights that are each off by at most half a unit and 1e-14 of themselves. The token is the
// one that the CPU draws, unless the CPU's own sum is that near the value it is compared with.
// Tokens lighter than half a unit are never drawn: 2^-49 of the most probable token if V <= 32768.
// The softmax of log-probabilities is summed the same way at temperature 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/host/ops.h"
#include "kernels/params/sampling.h"
#include "kernels/tensor_view.h"

namespace eta::cuda {

// The most alternatives (SampleRow::top) of a row. The engine's limit is 20.
inline constexpr size_t kMaxAlternatives = 1024;

// The functions below take the same `rows`, and the same `num_rows` >= rows.size(): the bucket. The
// device skips rows after the last one. Blobs are 8-byte aligned.

// An upper bound of the bytes that Pack() writes.
size_t PackedBytes(std::span<const SampleRow> rows, int32_t num_rows);
// Writes the blob that Sample() reads and returns its size.
size_t Pack(std::span<const SampleRow> rows, int32_t num_rows, std::byte* packed);
// The bytes that Sample() writes and Unpack() reads: 8 a row of the bucket and 8 an alternative.
size_t ResultBytes(std::span<const SampleRow> rows, int32_t num_rows);
// Fills in the rows' token, finite, barred, logprob and top from results copied to the host.
void Unpack(const std::byte* results, int32_t num_rows, std::span<SampleRow> rows);

// Puts one draw per row of the bucket on the stream. `packed` and `results` are device memory.
// REQUIRES: no id occurs twice in one row's counts.
void Sample(Context& context, const TensorView& logits, const std::byte* packed, int32_t num_rows,
            std::byte* results);

}  // namespace eta::cuda
