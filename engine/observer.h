// Hooks for whoever measures the engine; none of them costs anything when no observer is set.
// Called on the step thread, with several devices on several of them at once; must not block. What
// a report points to lives during the call only.
#pragma once

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/request.h"

namespace eta {

struct StepReport {
  std::chrono::nanoseconds duration{0};
  int32_t prefill_rows = 0;
  int32_t decode_rows = 0;
  int32_t probe_rows = 0;  // of a step that served probes, which has no other rows
  int32_t sequences_running = 0;
  int32_t requests_waiting = 0;
  int32_t blocks_used = 0;    // referenced by sequences
  int32_t blocks_cached = 0;  // kept for their prefix only
  int32_t blocks_free = 0;
  int32_t preemptions = 0;
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void OnStep(const StepReport& report) = 0;
  virtual void OnRequestEnd(const Request& request, const absl::Status& status,
                            const FinishedEvent& outcome) = 0;
};

}  // namespace eta
