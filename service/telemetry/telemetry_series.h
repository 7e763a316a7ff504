// What Telemetry counts: one struct for each set of labels.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/request/answers/answer_format.h"
#include "engine/request/request.h"
#include "service/telemetry/attention_window.h"
#include "service/telemetry/call_end.h"
#include "service/telemetry/histogram.h"
#include "service/telemetry/label_names.h"

namespace eta {

// What the heads of one layer did.
struct LayerTotals {
  std::vector<int64_t> keys_attended;  // [HQ]
  std::vector<int64_t> keys_read;      // [HKV]
  int64_t keys_eligible = 0;           // T summed over rows: of each head
};

// What the experts of one layer did.
struct ExpertTotals {
  int32_t layer = 0;
  std::vector<int64_t> rows;  // [E]
  int64_t read = 0;           // experts with rows, summed over steps
};

// Requests of one tenant, one mode and one version of a profile.
struct AccountSeries {
  static constexpr int64_t kNoVersion = 0;       // no profile
  static constexpr int64_t kOtherVersions = -1;  // those without a label of their own

  Label tenant;
  AttentionMode mode = AttentionMode::kFull;
  Label profile;
  int64_t version = kNoVersion;

  AttentionSums attention;
  RecentAttention recent;  // in a snapshot
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  Histogram density{RatioBuckets()};
  Histogram union_density{RatioBuckets()};
  Histogram mass_kept{MassBuckets()};  // of row-layers
  int64_t fallbacks = 0;               // requests gone full for want of mass: not by Begin::kFull
  std::vector<LayerTotals> layers;     // [L], in a snapshot that was asked for them

  // Whether its labels are still there; else it is a part of sums alone.
  bool shown() const { return tenant != Label::Gone() && profile != Label::Gone(); }
};

// Requests of one mode.
struct ModeSeries {
  AttentionMode mode = AttentionMode::kFull;
  Histogram first_token{FirstTokenBuckets()};
  Histogram inter_token{InterTokenBuckets()};
  Histogram per_output_token{InterTokenBuckets()};
  Histogram duration{RequestBuckets()};
};

enum class StepPhase : uint8_t { kPrefill, kDecode, kMixed, kPass };
inline constexpr int kStepPhases = 4;

// Requests whose answers have a format of one kind.
struct FormatSeries {
  int64_t calls = 0;    // that ended
  int64_t ended = 0;    // answers, where they are whole or where the request wanted a stop
  int64_t cut_off = 0;  // by max_tokens
  int64_t invalid = 0;  // not what they should be
};

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
  Histogram deadline_wait{FirstTokenBuckets()};  // of Generate calls whose deadline passed
  std::array<FormatSeries, kAnswerFormatKinds> formats{};
  Histogram format_compile{CompileBuckets()};  // of formats that were not kept
  int64_t formats_kept = 0;                    // that calls found compiled
  Histogram step_masks{MaskBuckets()};         // of steps with formats
  Histogram step_mask_wait{MaskBuckets()};     // likewise
  int64_t steps = 0;
  int64_t pass_rows = 0;
  std::vector<ExpertTotals> experts;  // of the layers that have them
  int64_t preemptions = 0;
  DraftCounts drafts;
  std::array<int64_t, kStages> cancelled{};
  std::array<int64_t, kCallEnds> calibrations{};
  std::array<int64_t, kDefaultProfileUses> default_profile{};
};

// Calls that ended alike.
struct CallSeries {
  std::string_view method;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string_view finish_reason;
  std::string_view mode;
  Label profile;
  int64_t version = AccountSeries::kNoVersion;
  Label tenant;

  bool shown() const { return tenant != Label::Gone() && profile != Label::Gone(); }
  auto operator<=>(const CallSeries&) const = default;
};

// Calls that were refused or failed for one reason.
struct ReasonSeries {
  std::string method;
  std::string reason;  // in lower case

  auto operator<=>(const ReasonSeries&) const = default;
};

// Calls of one tenant that did not end OK.
struct TenantReason {
  Label tenant;
  std::string_view method;
  std::string reason;  // as the client is told

  auto operator<=>(const TenantReason&) const = default;
};

}  // namespace eta
