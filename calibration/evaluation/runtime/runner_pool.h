// Runners by the cache that they run on: ways of attending with other blocks or another index take
// another one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "calibration/evaluation/runtime/runner.h"
#include "calibration/evaluation/runtime/runtime.h"

namespace eta {

// Keeps the runner that was asked for last. Not thread-safe.
class RunnerPool {
 public:
  // Runners for sequences of up to `max_context` tokens; `around` as in Runtime::MakeRunner. The
  // runtime must outlive the pool.
  RunnerPool(Runtime& runtime, int32_t max_context, Backend* around = nullptr)
      : runtime_(runtime), max_context_(max_context), around_(around) {}

  // Valid until the next call with another geometry.
  absl::StatusOr<SequenceRunner*> For(const KvGeometry& geometry);
  RunnerSource Source() {
    return [this](const KvGeometry& geometry) { return For(geometry); };
  }

 private:
  Runtime& runtime_;
  int32_t max_context_;
  Backend* around_;
  std::optional<KvGeometry> geometry_;
  std::unique_ptr<SequenceRunner> runner_;
};

}  // namespace eta
