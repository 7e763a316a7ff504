// One shift of all constants, or of a relative threshold, chosen by measurement: until a measured
// density (union or head, of a decode-like run) meets its target, or as sparse as a bound on the
// perplexity or on the retained mass allows (eta-semantics.md, "Profile").
//
// A measurement runs the model, so the search takes as few as it can. It begins at shift 0 and
// doubles its step until the wanted level lies between two measurements. Then it narrows that
// bracket, by turns at the linear interpolate and the middle. It relies only on which side of the
// level each end was measured. So plateaus, and measurements that are not quite monotone, cost
// accuracy but never the end.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace eta {

struct ShiftSearch {
  double first_step = 0.5;
  double max_shift = 128.0;          // of either sign
  double resolution = 1.0 / 1024.0;  // brackets as narrow as this are not narrowed further
  int max_measurements = 32;
};

// Measures the value at a shift that is added to every constant. A larger shift is sparser. An
// error ends the search and is returned unchanged.
using MeasureShift = std::function<absl::StatusOr<double>(double shift)>;

struct ShiftResult {
  double shift = 0.0;
  // Measured at the shift: a density, the increase of perplexity in percent, or a retained mass.
  double value = 0.0;
  int measurements = 0;
};

// The first shift whose measured density is within `tolerance` of `target`, in (0, 1].
// FailedPrecondition (target_error.h, naming `field`) with the nearest measured value, the sparsest
// of equally near ones. InvalidArgument for a target, tolerance or search out of limits. Internal
// for a measured value outside [0, 1].
absl::StatusOr<ShiftResult> SolveDensityShift(const std::string& field, double target,
                                              double tolerance, const ShiftSearch& search,
                                              const MeasureShift& measure);

// The largest measured shift whose perplexity is at most `max_increase_percent` above
// `full_perplexity`. The next larger measured shift is `resolution` away, or the search is at its
// end. If shift 0 does not fit, it searches downwards in doubling steps; an interval that fits and
// lies between two steps is not found. FailedPrecondition with the smallest measured increase,
// other errors as above. Internal for a perplexity that is NaN or below 1. An infinite perplexity
// does not fit.
absl::StatusOr<ShiftResult> SolvePerplexityShift(double full_perplexity,
                                                 double max_increase_percent,
                                                 const ShiftSearch& search,
                                                 const MeasureShift& measure);

// The largest measured shift that keeps a mass of at least `least`, in (0, 1]; otherwise like
// SolvePerplexityShift. FailedPrecondition with the largest measured mass. Internal for a mass
// outside [0, 1].
absl::StatusOr<ShiftResult> SolveMassShift(double least, const ShiftSearch& search,
                                           const MeasureShift& measure);

// Returns constants + shift as a profile stores them.
std::vector<float> ShiftThresholds(std::span<const double> constants, double shift);

}  // namespace eta
