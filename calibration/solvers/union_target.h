// One shift of all constants, chosen by measurement: until a measured density (union or head, of a
// decode-like run) meets its target, or as sparse as the perplexity of held-out text allows
// (eta-semantics.md, "Profile").
//
// A measurement runs the model, so each one counts. The search begins at shift 0, doubles its step
// until the wanted level lies between two measurements, then narrows that bracket, by turns at its
// linear interpolate and its middle. It relies on nothing but the sides its two ends were measured
// on, so plateaus and measurements that are not quite monotone only cost accuracy, never the end.
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

// The value at a shift added to every constant; a larger one is sparser. Its error ends the search
// and is returned as it is.
using MeasureShift = std::function<absl::StatusOr<double>(double shift)>;

struct ShiftResult {
  double shift = 0.0;
  double value = 0.0;  // measured there: a density, or the increase of perplexity in percent
  int measurements = 0;
};

// The first shift whose measured density is within `tolerance` of `target`, in (0, 1].
// FailedPrecondition (target_error.h, naming `field`) with the nearest value measured, of equally
// near ones the sparsest; InvalidArgument for a target, tolerance or search out of limits; Internal
// for a measured value outside [0, 1].
absl::StatusOr<ShiftResult> SolveDensityShift(const std::string& field, double target,
                                              double tolerance, const ShiftSearch& search,
                                              const MeasureShift& measure);

// The largest shift measured whose perplexity is at most `max_increase_percent` above
// `full_perplexity`, with the next larger one measured being `resolution` away (or the search at
// its end). From an unfit shift 0 it looks downwards in doubling steps: a fit interval that lies
// between two of them is not found. FailedPrecondition with the smallest increase measured, and
// otherwise as above; Internal for a perplexity that is NaN or below 1. Infinity is unfit.
absl::StatusOr<ShiftResult> SolvePerplexityShift(double full_perplexity,
                                                 double max_increase_percent,
                                                 const ShiftSearch& search,
                                                 const MeasureShift& measure);

// constants + shift, as a profile stores them.
std::vector<float> ShiftThresholds(std::span<const double> constants, double shift);

}  // namespace eta
