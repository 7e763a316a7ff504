// The treatment of a single score, shared by both calibration kernels: the cell it belongs to, and
// its gate.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/calibration_cells.h"
#include "kernels/cuda/device/kv_tile.h"

namespace eta::cuda {

// Numbers of a thread's scores outside the bins.
struct OutsideScores {
  uint32_t below = 0;
  uint32_t above = 0;
  uint32_t not_finite = 0;
};

// Finds the bin floor((S - low) / width) of a float32 score. If the width is a power of two that
// divides both ends, as by default, float32 finds the exact bin; otherwise double does.
class ScoreCellFinder {
 public:
  explicit ScoreCellFinder(const ScoreBins& bins)
      : count_(bins.count), low_(bins.low), high_(bins.high), width_(bins.width()) {
    constexpr double kMost = 1 << 22;  // the most bins on either side of 0
    int exponent = 0;
    const double first = low_ / width_;
    exact_ = std::frexp(width_, &exponent) == 0.5 && std::abs(exponent) < 100 &&
             first == std::rint(first) && std::abs(first) <= kMost &&
             std::abs(high_ / width_) <= kMost;
    if (!exact_) return;
    float_low_ = static_cast<float>(low_);
    float_high_ = static_cast<float>(high_);
    per_bin_ = static_cast<float>(1.0 / width_);
    first_ = static_cast<int32_t>(first);
  }

  // The number of cells that have a weight. They come first: the bins, below_weight and
  // above_weight.
  ETA_HOST_DEVICE int32_t num_cells() const { return count_ + 2; }

  // The cell that gets the score's weight; -1: none. Counts a score outside the bins in `outside`.
  __device__ __forceinline__ int32_t Find(float score, OutsideScores& outside) const {
    if (exact_) {
      if (score >= float_low_ && score < float_high_) {
        return __float2int_rd(score * per_bin_) - first_;
      }
    } else if (score >= low_ && score < high_) {
      return min(__double2int_rd((score - low_) / width_), count_ - 1);
    }
    if (!(fabsf(score) < INFINITY)) {
      ++outside.not_finite;
      return -1;
    }
    const bool below = score < low_;
    outside.below += below ? 1 : 0;
    outside.above += below ? 0 : 1;
    return count_ + (below ? 0 : 1);
  }

 private:
  int32_t count_;
  double low_;
  double high_;
  double width_;
  bool exact_;
  float float_low_ = 0.0f;
  float float_high_ = 0.0f;
  float per_bin_ = 0.0f;
  int32_t first_ = 0;  // low in units of bins
};

// m = sigma(beta * (S - tau_eff)), within 1e-7.
__device__ __forceinline__ float GateOf(float score, float threshold, float beta) {
  return __fdividef(1.0f, 1.0f + __expf(beta * (threshold - score)));
}

__device__ __forceinline__ unsigned long long WeightOfRow(int32_t num_keys) {
  return static_cast<unsigned long long>(__double2ll_rn(kCalibrationUnit / num_keys));
}

// The row mean of the gate in units of weight, or 0 where the sum is NaN.
__device__ __forceinline__ unsigned long long GateUnits(double gate_sum, int32_t num_keys) {
  if (isnan(gate_sum)) return 0;
  return static_cast<unsigned long long>(__double2ll_rn(kCalibrationUnit * gate_sum / num_keys));
}

// Adds every lane's value to the cell. All lanes of the warp call it.
__device__ __forceinline__ void AddOfWarp(unsigned long long value, unsigned long long* cell) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  if (threadIdx.x % 32 == 0 && value != 0) atomicAdd(cell, value);
}

// Adds the scores outside the bins to `cells`, those of one query head.
__device__ __forceinline__ void AddOutside(const OutsideScores& outside,
                                           const CalibrationCells& layout,
                                           unsigned long long* cells) {
  AddOfWarp(outside.below, cells + layout.below());
  AddOfWarp(outside.above, cells + layout.above());
  AddOfWarp(outside.not_finite, cells + layout.not_finite());
}

}  // namespace eta::cuda
