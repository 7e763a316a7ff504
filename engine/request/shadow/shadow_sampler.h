// Draws the row-layers that are measured against full attention, and sees to what that costs.
//
// A step that measures cannot be replayed as a graph (kernels/cuda/NOTES.md), so one step in
// kPeriod does all of it: it spends what the steps before have earned.
//   rows   a step earns `rate` of its row-layers that prune; measuring one costs 1.
//   bytes  a step earns kShare of what it reads: keys and values of its decode rows, and weights.
//          Measuring a row-layer costs the keys and values that full attention reads for it.
// A draw needs a whole row-layer and any bytes. Where it costs more bytes than there are, they are
// owed, and nothing is drawn until they are earned: so one row-layer of a long context counts like
// many of short ones, and no length is left out. Over time what is drawn reads at most kShare of
// what the steps read, whatever the rate. What requests with min_mass have measured
// (guarded_rows.h) takes from the bytes that are there, and owes none.
//
// What is drawn depends on the steps alone, not on time. Not thread-safe: the step thread's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/shadow/shadow_rows.h"

namespace eta {

class ShadowSampler {
 public:
  static constexpr int64_t kPeriod = 16;  // steps
  static constexpr double kShare = 0.01;  // of the bytes that steps read
  static constexpr int kMostDraws = 256;  // of one step

  struct Costs {
    std::vector<int32_t> layers;  // those that are measured: the full ones
    double rate = 0.0;            // [0, 1], of row-layers; 0: none is drawn
    int64_t key_bytes = 0;        // K and V of one token in one layer
    int64_t step_bytes = 0;       // what every step reads beside them: the weights
  };
  // What a step has done.
  struct Work {
    int64_t rows = 0;          // that could have been drawn
    int64_t kv_bytes = 0;      // that its decode rows read
    int64_t drawn = 0;         // row-layers
    int64_t drawn_keys = 0;    // T, summed over them
    int64_t guarded_keys = 0;  // likewise, of row-layers that requests with min_mass had measured
  };

  explicit ShadowSampler(const Costs& costs) : costs_(costs) {}

  // Adds the row-layers that the next step measures of `rows`, each given with its row, member and
  // T. Returns their number. The same until that step begins.
  int64_t Draw(std::span<const ShadowRow> rows, ShadowRows& out) const;
  // The next step has begun; returns its number, from 0.
  int64_t Begin() { return begun_++; }
  // A step is done; those that fail are left out.
  void Finish(int64_t number, const Work& work);

 private:
  // Where in a period a step measures. What the period before earned is known by then, even if the
  // step is prepared while the one before it runs.
  static constexpr int64_t kDrawAt = kPeriod / 2;
  // Bytes that are left count for so many periods.
  static constexpr double kPeriodsKept = 4.0;

  const Costs costs_;
  int64_t begun_ = 0;
  double rows_ = 0.0;   // may be spent
  double bytes_ = 0.0;  // likewise; below 0: owed
  // Earned in the period at hand:
  int64_t period_ = 0;
  double earned_rows_ = 0.0;
  double earned_bytes_ = 0.0;
};

}  // namespace eta
