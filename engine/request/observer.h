// Hooks for whoever measures the engine. Without an observer they cost nothing.
//
// They are called on the step thread, of several devices on several threads at once, and must not
// block. What a report points to lives during the call only.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "engine/request/request.h"

namespace eta {

// A sequence that drew a token in the step.
struct TokenReport {
  const Request* request = nullptr;
  const ResolvedAttention* attention = nullptr;
  bool first = false;
  std::chrono::nanoseconds latency{0};  // first: since submission; else since the token before
};

// A decode row that counts (eta-semantics.md, "What is counted"): what it read stands in row `row`
// of StepReport::tokens_attended and tokens_read.
struct DecodeRowReport {
  const Request* request = nullptr;
  const ResolvedAttention* attention = nullptr;
  int32_t row = 0;
  int32_t kv_len = 0;  // T
  AttentionSums sums;  // of this row

  // Gone full (min_mass, begin): no row of `attention`.
  bool fallback() const { return sums.fallback_rows > 0; }
};

// Rows of sparse prefill of one sequence that count.
struct PrefillReport {
  const Request* request = nullptr;
  const ResolvedAttention* attention = nullptr;
  AttentionSums sums;  // of these rows
};

// A decode row in one layer that was measured against full attention (eta-semantics.md, "What is
// counted"). Mass and error are means over query heads.
struct ShadowReport {
  const Request* request = nullptr;
  const ResolvedAttention* attention = nullptr;
  int32_t kv_len = 0;  // T
  float mass = 0.0f;
  float error = 0.0f;
};

// A step that ran, or one that only preempted: then it has no rows and no duration.
struct StepReport {
  std::chrono::nanoseconds duration{0};
  int32_t sequences = 0;  // of requests, with rows in the step
  int32_t prefill_rows = 0;
  int32_t decode_rows = 0;
  int32_t pass_rows = 0;  // of a step that served passes, which has no other rows
  int32_t sequences_running = 0;
  int32_t requests_waiting = 0;
  int32_t blocks_used = 0;    // referenced by sequences
  int32_t blocks_cached = 0;  // kept for their prefix only
  int32_t blocks_free = 0;
  int32_t preemptions = 0;
  int32_t masks = 0;                       // of bound answers that drew in the step
  std::chrono::nanoseconds mask_time{0};   // to fill them, of all threads together
  std::chrono::nanoseconds mask_delay{0};  // of it, how long the step waited
  DraftCounts drafts;                      // that the step verified

  std::span<const TokenReport> tokens;
  std::span<const DecodeRowReport> decode;
  std::span<const PrefillReport> prefill;
  std::span<const ShadowReport> shadow;
  int32_t num_rows = 0;                      // R
  const int32_t* tokens_attended = nullptr;  // [L, R, HQ]; null where `decode` is empty
  const int32_t* tokens_read = nullptr;      // [L, R, HKV]; likewise
  // [L, E]: rows of each expert; 0 in layers without experts. Null: the model has none.
  const int32_t* expert_rows = nullptr;
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void OnStep(const StepReport& report) = 0;
  // Called for every request that was submitted: after the report of its last step, and before its
  // sink has the last event. So whoever has an answer finds it counted.
  virtual void OnRequestEnd(const Request& request, const absl::Status& status,
                            const FinishedEvent& outcome) = 0;
};

}  // namespace eta
