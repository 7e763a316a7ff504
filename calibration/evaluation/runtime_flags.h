// The flags that say which model, backend and cache an evaluation runs on, and the loaded model.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "calibration/evaluation/runner.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model_config.h"
#include "kernels/backend.h"

namespace CLI {
class App;
}

namespace eta {

// Adds --backend, --threads, --device and --compute. `backend` must not move until the command line
// is parsed.
void RegisterBackend(CLI::App& command, BackendOptions& backend);

// Says what is wrong with a flag's number; empty if nothing is. NaN lies in no range.
std::string CheckReal(const std::string& text, double low, double high);

// Parsing the command line writes these flags. The object must not move until then.
struct RuntimeFlags {
  std::string model_dir;
  BackendOptions backend;
  DType kv_dtype = DType::kFloat16;
  std::optional<IndexKind> index;
  std::optional<DType> index_dtype;
  WeightFormat weights = WeightFormat::kNative;

  // Adds --model, --kv_dtype, --index, --index_dtype, --weights and the flags of RegisterBackend.
  void Register(CLI::App& command);
};

// A checkpoint and a backend, opened together.
class Runtime {
 public:
  static absl::StatusOr<std::unique_ptr<Runtime>> Load(const RuntimeFlags& flags);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  const ModelConfig& config() const { return config_; }  // its index: the flag's, if it was given
  const Backend& backend() const { return *rivals_; }
  // What runners run through. It does nothing of its own until it is told to.
  RivalBackend& rivals() { return *rivals_; }

  // The runner must not outlive this object.
  absl::StatusOr<std::unique_ptr<SequenceRunner>> MakeRunner(const KvGeometry& geometry,
                                                             int32_t max_context);

 private:
  Runtime(Checkpoint checkpoint, ModelConfig config, std::unique_ptr<RivalBackend> rivals,
          WeightFormat weights)
      : checkpoint_(std::move(checkpoint)),
        config_(std::move(config)),
        rivals_(std::move(rivals)),
        weights_(weights) {}

  Checkpoint checkpoint_;
  ModelConfig config_;
  std::unique_ptr<RivalBackend> rivals_;
  WeightFormat weights_;
};

}  // namespace eta
