// Conversion of the messages of Calibrate.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/calibrate/calibrator.h"
#include "calibration/profiles/profile_store.h"
#include "engine/front/engine.h"
#include "eta/v1/calibrate.pb.h"

namespace eta {

inline constexpr int kMaxCalibrationSamples = 1024;
inline constexpr size_t kMaxDocumentNameBytes = 255;

// What a request asks for, without its samples' tokens, and how the result is stored, without its
// content.
struct CalibrationPlan {
  CalibrationJob job;
  PutProfile put;
  bool joinable = false;  // the client gave the request id, so that it can come back
};

// Every limit that stands in calibrate.proto and can be checked without tokenising, in the order of
// the fields. INVALID_ARGUMENT naming the field; FAILED_PRECONDITION (UNSUPPORTED_BY_MODEL).
absl::StatusOr<CalibrationPlan> ToCalibration(const v1::CalibrateRequest& message,
                                              const EngineInfo& info, const Limits& limits,
                                              int64_t max_tokens);

// What is known of samples before they are tokens.
struct SampleSizes {
  int64_t text_bytes = 0;
  int64_t least_tokens = 0;  // of all of them
};
SampleSizes SizesOf(const v1::CalibrateRequest& message, const EngineInfo& info);

// Token ids of every sample. INVALID_ARGUMENT (`samples`) for over `max_tokens` together, CANCELLED
// once `stop` is requested, and the engine's errors.
absl::StatusOr<std::vector<std::vector<int32_t>>> TokenizeSamples(
    const v1::CalibrateRequest& message, const Engine& engine, int64_t max_tokens,
    const std::stop_token& stop);

v1::CalibrateResponse ToMessage(const CalibrationProgress& progress);

}  // namespace eta
