#include "calibration/evaluation/runtime/runtime.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "kernels/system/usable_cpus.h"

namespace eta {

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Load(const RuntimeOptions& options) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(options.model_dir));
  ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(checkpoint.config_json()));
  config.index = options.index.value_or(config.index);
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeBackend(options.backend));
  const int threads =
      options.backend.num_threads > 0 ? options.backend.num_threads : ReadUsableCpus().threads();
  auto rivals =
      std::make_shared<RivalBackend>(std::shared_ptr<Backend>(std::move(backend)), threads);
  return std::unique_ptr<Runtime>(
      new Runtime(std::move(checkpoint), std::move(config), std::move(rivals), options.weights));
}

absl::StatusOr<std::unique_ptr<SequenceRunner>> Runtime::MakeRunner(const KvGeometry& geometry,
                                                                    int32_t max_context,
                                                                    Backend* around) {
  return SequenceRunner::Create(
      checkpoint_, around != nullptr ? *around : *rivals_,
      {.geometry = geometry, .weights = weights_, .max_context = max_context});
}

}  // namespace eta
