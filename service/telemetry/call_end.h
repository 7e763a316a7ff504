// How a call ended, as the metrics tell it.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "service/telemetry/call_record.h"

namespace eta {

enum class CallEnd : uint8_t {
  kOk,
  kCancelled,
  kRejected,  // before it ran
  kFailed,
};
inline constexpr int kCallEnds = 4;

// A Generate call ran if the engine took it and did not refuse it while it waited. For other
// methods the status decides. Trouble of the server's or too little time is a failure. So are
// samples that do not suffice to calibrate, and an answer that nobody took.
CallEnd EndOf(const CallRecord& record);

// The end of a calibration (CallObserver::OnCalibrationEnd). If its callers' deadline or a drain
// stopped it, it counts as cancelled, since that says nothing of its samples.
CallEnd CalibrationEndOf(const CallRecord& record);

// ErrorReason in lower case.
std::string ReasonLabel(const CallRecord& record);

// Whether that label stands for a limit of the call's tenant.
bool IsTenantLimit(std::string_view label);

// Reasons that Generate may give, so that their series are there before the first.
std::span<const std::string_view> RejectionReasons();
std::span<const std::string_view> FailureReasons();

// How far a Generate call had come.
enum class Stage : uint8_t { kQueued, kPrefill, kDecode };
inline constexpr int kStages = 3;
std::string_view Name(Stage stage);
Stage StageOf(const CallRecord& record);

// How long a Generate call waited for a token of the server's: for its first, or at its end for the
// next one, whichever took longer. What its reader held up does not count.
std::chrono::nanoseconds LongestWait(const CallRecord& record);

std::string_view Name(AttentionMode mode);
std::string_view Name(DefaultProfileUse use);
// "none" of a call that did not end OK.
std::string_view FinishReasonOf(const CallRecord& record);

}  // namespace eta
