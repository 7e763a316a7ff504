// Which model, backend and cache an evaluation runs on, and the loaded model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "calibration/evaluation/runtime/runner.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model_config.h"
#include "kernels/backend.h"
#include "kernels/backends/make_backend.h"

namespace eta {

struct RuntimeOptions {
  std::string model_dir;
  BackendOptions backend;
  DType kv_dtype = DType::kFloat16;
  std::optional<IndexKind> index;
  std::optional<DType> index_dtype;
  WeightFormat weights = WeightFormat::kNative;
};

// A checkpoint and a backend, opened together.
class Runtime {
 public:
  static absl::StatusOr<std::unique_ptr<Runtime>> Load(const RuntimeOptions& options);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  const ModelConfig& config() const { return config_; }  // its index: the option's, if there is one
  const Backend& backend() const { return *rivals_; }
  // What runners run through. It does nothing of its own until it is told to.
  RivalBackend& rivals() { return *rivals_; }
  // The same, to be wrapped by a backend that watches it.
  std::shared_ptr<Backend> shared_backend() { return rivals_; }

  // The runner must not outlive this object. `around`: what its rows run through, if not rivals();
  // it must outlive the runner.
  absl::StatusOr<std::unique_ptr<SequenceRunner>> MakeRunner(const KvGeometry& geometry,
                                                             int32_t max_context,
                                                             Backend* around = nullptr);

 private:
  Runtime(Checkpoint checkpoint, ModelConfig config, std::shared_ptr<RivalBackend> rivals,
          WeightFormat weights)
      : checkpoint_(std::move(checkpoint)),
        config_(std::move(config)),
        rivals_(std::move(rivals)),
        weights_(weights) {}

  Checkpoint checkpoint_;
  ModelConfig config_;
  std::shared_ptr<RivalBackend> rivals_;
  WeightFormat weights_;
};

}  // namespace eta
