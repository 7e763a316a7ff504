#include "calibration/evaluation/runtime/runner_pool.h"

#include <utility>

namespace eta {

absl::StatusOr<SequenceRunner*> RunnerPool::For(const KvGeometry& geometry) {
  if (runner_ && geometry_ == geometry) return runner_.get();
  runner_.reset();  // two models do not fit everywhere
  geometry_.reset();
  absl::StatusOr<std::unique_ptr<SequenceRunner>> made =
      runtime_.MakeRunner(geometry, max_context_, around_);
  if (!made.ok()) return made.status();
  runner_ = *std::move(made);
  geometry_ = geometry;
  return runner_.get();
}

}  // namespace eta
