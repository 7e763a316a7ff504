// What changes with the step: learning rate, gate temperature, sparsity weight, gate strength. Pure
// functions of the step, counted from 0, so that a resumed run needs no more than its step.
#pragma once

#include <cstdint>

namespace eta::training {

// Linear from 0 over `warm_up` steps to `peak`, then half a cosine down to `floor` at `steps`, and
// `floor` from there on. Step 0 of a warm-up has peak / warm_up.
struct CosineRate {
  double peak = 4e-4;
  double floor = 4e-5;
  int64_t warm_up = 300;
  int64_t steps = 10000;

  double At(int64_t step) const;
};

// Linear from `first` at step 0 to `last` at step `steps`, then `last`: beta 1 -> 5 (the paper
// anneals it over 70 % of the run), gate strength 0 -> 1.
struct LinearRamp {
  double first = 1.0;
  double last = 5.0;
  int64_t steps = 7000;  // 0: `last` at once

  double At(int64_t step) const;
};

// 0 for `delay` steps, linear over `ramp` steps to `peak`, `peak` for `hold` steps, linear over
// `decay` steps to final_share * peak, and that from there on.
struct SparsityWeight {
  double peak = 5e-4;
  int64_t delay = 750;
  int64_t ramp = 1690;
  int64_t hold = 0;
  int64_t decay = 0;  // 0: at once, as in the paper
  double final_share = 0.05;

  double At(int64_t step) const;
};

}  // namespace eta::training
