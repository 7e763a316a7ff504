// Thresholds for the ways of attending that ask for constants, from a window of the text itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "calibration/evaluation/runtime/runner.h"

namespace eta {

// Gives every attention with `constants` a profile of such thresholds. They are chosen on rows of
// the window from `prefill` on, under full attention. Runners run on `rivals`; `special_ids` as in
// SequenceSettingsOf. InvalidArgument for a union that this window cannot have.
absl::Status FitConstants(const RunnerSource& runners, RivalBackend& rivals,
                          std::span<const int32_t> window, int32_t prefill,
                          std::span<const int32_t> special_ids,
                          std::vector<EvaluatedAttention>& attentions);

}  // namespace eta
