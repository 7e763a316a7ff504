#include "calibration/evaluation/runtime/runner_pool.h"

#include "engine/base/status_macros.h"

namespace eta {

absl::StatusOr<SequenceRunner*> RunnerPool::For(const KvGeometry& geometry) {
  if (runner_ && geometry_ == geometry) return runner_.get();
  runner_.reset();  // two models do not fit everywhere
  geometry_.reset();
  ASSIGN_OR_RETURN(runner_, runtime_.MakeRunner(geometry, max_context_, around_));
  geometry_ = geometry;
  return runner_.get();
}

}  // namespace eta
