#include "calibration/evaluation/runtime/runtime.h"

#include <utility>

#include "kernels/system/usable_cpus.h"

namespace eta {

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Load(const RuntimeOptions& options) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(options.model_dir);
  if (!checkpoint.ok()) return checkpoint.status();
  absl::StatusOr<ModelConfig> config = ParseModelConfig(checkpoint->config_json());
  if (!config.ok()) return config.status();
  config->index = options.index.value_or(config->index);
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend(options.backend);
  if (!backend.ok()) return backend.status();
  const int threads =
      options.backend.num_threads > 0 ? options.backend.num_threads : ReadUsableCpus().threads();
  auto rivals =
      std::make_shared<RivalBackend>(std::shared_ptr<Backend>(*std::move(backend)), threads);
  return std::unique_ptr<Runtime>(
      new Runtime(*std::move(checkpoint), *std::move(config), std::move(rivals), options.weights));
}

absl::StatusOr<std::unique_ptr<SequenceRunner>> Runtime::MakeRunner(const KvGeometry& geometry,
                                                                    int32_t max_context,
                                                                    Backend* around) {
  return SequenceRunner::Create(
      checkpoint_, around != nullptr ? *around : *rivals_,
      {.geometry = geometry, .weights = weights_, .max_context = max_context});
}

}  // namespace eta
