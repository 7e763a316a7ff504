#include "training/commands/write_model.h"

#include <utility>

#include "calibration/evaluation/index_metric/index_metric.h"
#include "engine/base/files/output_file.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "training/export/trained_tensors.h"

namespace eta::training {
namespace {

absl::StatusOr<HeldOutResult> Measure(const ModelToWrite& model) {
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(model.config_json));
  if (config.index == IndexKind::kOutlier) {
    ASSIGN_OR_RETURN(const Checkpoint written, Checkpoint::Open(model.folder));
    RETURN_IF_ERROR(MeasureIndexMetric(
        written, model.held_out->windows(),
        {.backend = {.name = "cpu", .num_threads = model.threads}, .progress = {}},
        model.folder + "/index_metric.safetensors"));
  }
  ASSIGN_OR_RETURN(const Checkpoint written, Checkpoint::Open(model.folder));
  return model.held_out->Measure(written, /*full_only=*/false, {});
}

}  // namespace

absl::StatusOr<std::optional<HeldOutResult>> WriteModel(ModelToWrite model) {
  const TrainedTensors tensors(*model.parameters, model.config_json);
  RETURN_IF_ERROR(WriteCheckpoint(tensors, *model.texts, model.folder, /*dtype=*/{},
                                  /*replace=*/true));
  for (const Parameter& parameter : model.parameters->layout().parameters()) {
    model.card.parameters += parameter.count;
  }
  if (model.held_out != nullptr) {
    ASSIGN_OR_RETURN(HeldOutResult measured, Measure(model));
    model.card.context = model.held_out->context();
    model.card.prefill = model.held_out->prefill();
    model.card.measured = std::move(measured);
  }
  RETURN_IF_ERROR(WriteWholeFile(model.folder + "/README.md", ModelCardText(model.card)));
  return model.card.measured;
}

}  // namespace eta::training
