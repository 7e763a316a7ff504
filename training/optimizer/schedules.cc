#include "training/optimizer/schedules.h"

#include <cmath>

namespace eta::training {

double CosineRate::At(int64_t step) const {
  if (step < warm_up) return peak * static_cast<double>(step + 1) / static_cast<double>(warm_up);
  if (step >= steps) return floor;
  const double share = static_cast<double>(step - warm_up) / static_cast<double>(steps - warm_up);
  return floor + (peak - floor) * 0.5 * (1.0 + std::cos(share * 3.141592653589793));
}

double LinearRamp::At(int64_t step) const {
  if (step >= steps) return last;
  return first + (last - first) * static_cast<double>(step) / static_cast<double>(steps);
}

double SparsityWeight::At(int64_t step) const {
  const int64_t ramped = step - delay;
  if (ramped < 0) return 0.0;
  if (ramped < ramp) return peak * static_cast<double>(ramped) / static_cast<double>(ramp);
  const int64_t held = ramped - ramp;
  if (held < hold) return peak;
  const double last = final_share * peak;
  const int64_t decayed = held - hold;
  if (decayed >= decay) return last;
  return peak + (last - peak) * static_cast<double>(decayed) / static_cast<double>(decay);
}

}  // namespace eta::training
