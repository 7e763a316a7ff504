// Per-head z (eta-semantics.md, "Per-head z"): the smallest width of the bound, in deviations, at
// which a wanted share of a head's above-threshold keys (S >= tau_eff, over decode-like rows) lies
// in admitted blocks.
//
// The keys of one block are admitted together. So for each (row, head, full block) with such keys
// the smallest z that admits the block is found, and the keys are counted there. z comes in
// multiples of 1/256, rounded up: bin k holds the keys whose block is admitted at z = k/256, by the
// contract's float32 comparison itself, and not at (k - 1)/256. So the recall is met, and z is less
// than 1/256 too wide, which costs eta-27m about 0.1 points of union density at most. Blocks that
// only rescue admits (selection step 4) do not count; with them the recall is higher still.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/calibration_cells.h"

namespace eta {

// The above-threshold keys of one layer and query head.
struct HeadKeys {
  std::array<int64_t, kZBins> needed = {};  // by bin: keys in full blocks that are not pinned
  int64_t unconditional = 0;                // keys in pinned blocks and the tail: admitted at any z
  int64_t beyond = 0;                       // kZBeyond
  int64_t unreachable = 0;  // kZUnreachable (by rounding: S <= s |q| |k|); part of the total

  int64_t total() const;

  bool operator==(const HeadKeys&) const = default;
};

// Copyable; not thread-safe. Counts are integers, so any order and any cut gives the same.
class HeadZStatistics {
 public:
  // InvalidArgument for sizes below 1, or past 16,384 heads together.
  static absl::StatusOr<HeadZStatistics> Create(int32_t num_layers, int32_t num_query_heads);

  int32_t num_layers() const { return num_layers_; }
  int32_t num_query_heads() const { return num_query_heads_; }

  // Adds `keys` above-threshold keys of a row in a full block that is not pinned. REQUIRES, also in
  // the next call: layer and head in range, keys >= 0.
  void AddBlock(int32_t layer, int32_t head, const BlockBound& bound, float threshold,
                int64_t keys);
  // Adds the above-threshold keys of a row in its pinned blocks and its tail.
  void AddUnconditional(int32_t layer, int32_t head, int64_t keys);
  // Adds what a device has counted over rows of one head. InvalidArgument for a negative count.
  absl::Status Add(int32_t layer, int32_t head, const HeadKeys& increment);
  // Adds all keys of another object. InvalidArgument for another shape.
  absl::Status Merge(const HeadZStatistics& other);

  const HeadKeys& head(int32_t layer, int32_t head) const { return heads_[Index(layer, head)]; }
  // The keys of all heads together, from which one global z is chosen.
  HeadKeys Pooled() const;

 private:
  HeadZStatistics(int32_t num_layers, int32_t num_query_heads);
  size_t Index(int32_t layer, int32_t head) const;

  int32_t num_layers_;
  int32_t num_query_heads_;
  std::vector<HeadKeys> heads_;  // [L, HQ]
};

struct HeadZ {
  float z = 0.0f;       // a multiple of 1/256 in [0, kMaxHeadZ]
  double recall = 1.0;  // share of the keys admitted at z
  int64_t keys = 0;     // the keys behind it; without keys z is 0 and the recall 1
};

// The smallest z with at least `recall`, in (0, 1]. InvalidArgument for a recall out of range.
// FailedPrecondition (target_error.h, field z_recall), with the recall at kMaxHeadZ, if no z
// reaches it.
absl::StatusOr<HeadZ> SmallestZ(const HeadKeys& keys, double recall);

// Solves every head, [L, HQ], up to the first error, whose metadata has layer and head.
absl::StatusOr<std::vector<HeadZ>> SolveHeadZ(const HeadZStatistics& statistics, double recall);

}  // namespace eta
