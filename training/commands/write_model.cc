#include "training/commands/write_model.h"

#include <utility>

#include "calibration/evaluation/index_metric/index_metric.h"
#include "engine/base/files/output_file.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "training/export/trained_tensors.h"

namespace eta::training {
namespace {

absl::Status WriteIndexMetric(const ModelToWrite& model) {
  if (model.held_out == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(model.config_json));
  if (config.index != IndexKind::kOutlier) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Checkpoint written, Checkpoint::Open(model.folder));
  return MeasureIndexMetric(
      written, model.held_out->windows(),
      {.backend = {.name = "cpu", .num_threads = model.threads}, .progress = {}},
      model.folder + "/index_metric.safetensors");
}

absl::StatusOr<HeldOutResult> MeasureFigures(const ModelToWrite& model) {
  if (model.as_trained) return model.as_trained(*model.measured);
  ASSIGN_OR_RETURN(const Checkpoint written, Checkpoint::Open(model.folder));
  return model.measured->Measure(written, /*full_only=*/false, {});
}

absl::Status Measure(const ModelToWrite& model, ModelCard& card) {
  ASSIGN_OR_RETURN(HeldOutResult measured, MeasureFigures(model));
  card.context = model.measured->context();
  card.prefill = model.measured->prefill();
  if (model.asked != nullptr && card.dense) {
    card.verdict = Judge(*model.asked, measured, *card.dense);
  }
  card.measured = std::move(measured);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelCard> WriteModel(ModelToWrite model) {
  const TrainedTensors tensors(*model.parameters, model.config_json);
  RETURN_IF_ERROR(WriteCheckpoint(tensors, *model.texts, model.folder, /*dtype=*/{},
                                  /*replace=*/true));
  for (const Parameter& parameter : model.parameters->layout().parameters()) {
    model.card.parameters += parameter.count;
  }
  RETURN_IF_ERROR(WriteIndexMetric(model));
  if (model.measured != nullptr) RETURN_IF_ERROR(Measure(model, model.card));
  RETURN_IF_ERROR(WriteWholeFile(model.folder + "/README.md", ModelCardText(model.card)));
  return std::move(model.card);
}

}  // namespace eta::training
