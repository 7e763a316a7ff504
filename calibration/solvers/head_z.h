// Per-head z (eta-semantics.md, "Per-head z"): the smallest width of the bound, in deviations, for
// which a wanted share of a head's above-threshold keys (S >= tau_eff, over decode-like rows) lies
// in admitted blocks.
//
// Keys of one block stand or fall together, so of each (row, head, full block) that holds such keys
// the smallest z that admits it is found and the keys are counted there. z comes in multiples of
// 1/256, rounded up: bin k holds the keys whose block is admitted at z = k/256, by the contract's
// float32 comparison itself, and is not at (k - 1)/256. So the recall is met, and z is less than
// 1/256 too wide: of eta-27m, whose union density grows from 30 % to 46 % between z 1.5 and 2, it
// costs about 0.1 points at most. What rescue admits (selection step 4) is left out: with it the
// recall is higher still.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/calibration_cells.h"

namespace eta {

// Above-threshold keys of one layer and query head.
struct HeadKeys {
  std::array<int64_t, kZBins> needed = {};  // by bin, in full blocks that are not pinned
  int64_t unconditional = 0;                // in pinned blocks and the tail: admitted at any z
  int64_t beyond = 0;                       // kZBeyond
  int64_t unreachable = 0;  // kZUnreachable (by rounding: S <= s |q| |k|); part of the total

  int64_t total() const;

  bool operator==(const HeadKeys&) const = default;
};

// Copyable; not thread-safe. Counts are integers: any order and any cut gives the same.
class HeadZStatistics {
 public:
  // InvalidArgument for sizes below 1, or past 16,384 heads together.
  static absl::StatusOr<HeadZStatistics> Create(int32_t num_layers, int32_t num_query_heads);

  int32_t num_layers() const { return num_layers_; }
  int32_t num_query_heads() const { return num_query_heads_; }

  // `keys` above-threshold keys of a row, in a full block that is not pinned.
  // REQUIRES: layer and head in range, keys >= 0, as in the next call.
  void AddBlock(int32_t layer, int32_t head, const BlockBound& bound, float threshold,
                int64_t keys);
  // ... and in its pinned blocks and tail.
  void AddUnconditional(int32_t layer, int32_t head, int64_t keys);
  // What a device has counted over rows of one head. InvalidArgument for a negative count.
  absl::Status Add(int32_t layer, int32_t head, const HeadKeys& increment);
  // All of another. InvalidArgument for another shape.
  absl::Status Merge(const HeadZStatistics& other);

  const HeadKeys& head(int32_t layer, int32_t head) const { return heads_[Index(layer, head)]; }
  // Of all heads together: what one global z is chosen by.
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
  int64_t keys = 0;     // behind it; with none, z is 0 and the recall 1
};

// The smallest z with at least `recall`, in (0, 1]. InvalidArgument for another wanted recall;
// FailedPrecondition (target_error.h, field z_recall) with the recall at kMaxHeadZ.
absl::StatusOr<HeadZ> SmallestZ(const HeadKeys& keys, double recall);

// Of every head, [L, HQ]; the first error, with layer and head in its metadata.
absl::StatusOr<std::vector<HeadZ>> SolveHeadZ(const HeadZStatistics& statistics, double recall);

}  // namespace eta
