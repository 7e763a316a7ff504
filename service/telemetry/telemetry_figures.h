// What Telemetry has counted, copied at one moment: what the Prometheus page is written from. Views
// are of labels (label_names.h) and stay good as long as the Telemetry they came from.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "service/telemetry/call_end.h"
#include "service/telemetry/histogram.h"
#include "service/telemetry/telemetry_snapshot.h"

namespace eta {

struct CallSeries {
  std::string_view method;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string_view finish_reason;
  std::string_view mode;
  std::string_view profile;
  std::string_view tenant;

  auto operator<=>(const CallSeries&) const = default;
};

struct ReasonSeries {
  std::string method;
  std::string reason;

  auto operator<=>(const ReasonSeries&) const = default;
};

// Why calls of a tenant did not end OK.
struct TenantReason {
  std::string_view tenant;
  std::string_view method;
  std::string reason;  // as the client is told

  auto operator<=>(const TenantReason&) const = default;
};

// Requests of one mode and one profile.
struct ModeSeries {
  AttentionMode mode = AttentionMode::kFull;
  std::string_view profile;

  Histogram first_token{FirstTokenBuckets()};
  Histogram inter_token{InterTokenBuckets()};
  Histogram per_output_token{InterTokenBuckets()};
  Histogram duration{RequestBuckets()};
  Histogram density{RatioBuckets()};
  Histogram union_density{RatioBuckets()};
};

// Of one tenant, one mode and one profile.
struct AccountFigures {
  std::string_view tenant;
  AttentionMode mode = AttentionMode::kFull;
  std::string_view profile;

  AttentionTotals attention;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
};

enum class StepPhase : uint8_t { kPrefill, kDecode, kMixed, kPass };
inline constexpr int kStepPhases = 4;

// Of all requests.
struct ServerSeries {
  Histogram queue{RequestBuckets()};
  Histogram prefill{RequestBuckets()};
  Histogram decode{RequestBuckets()};
  Histogram prompt_tokens{TokenBuckets()};
  Histogram generated_tokens{TokenBuckets()};
  std::array<Histogram, kStepPhases> step_duration{
      Histogram(StepBuckets()), Histogram(StepBuckets()), Histogram(StepBuckets()),
      Histogram(StepBuckets())};
  Histogram batch_size{BatchBuckets()};
  Histogram step_tokens{BatchBuckets()};
  Histogram calibration{CalibrationBuckets()};
  int64_t steps = 0;
  int64_t pass_rows = 0;
  int64_t preemptions = 0;
  std::array<int64_t, kStages> cancelled{};
  std::array<int64_t, kCallEnds> calibrations{};
};

struct TelemetryFigures {
  std::string model;  // empty: it is not loaded yet
  std::chrono::nanoseconds load_duration{0};
  std::chrono::nanoseconds uptime{0};
  ServerSeries server;
  std::vector<ModeSeries> modes;
  std::vector<AccountFigures> accounts;
  std::vector<std::pair<CallSeries, int64_t>> calls;
  std::vector<std::pair<ReasonSeries, int64_t>> rejected;
  std::vector<std::pair<ReasonSeries, int64_t>> failed;
  std::vector<std::pair<TenantReason, int64_t>> reasons;
};

}  // namespace eta
