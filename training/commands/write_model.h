// The folder of a trained model: weights first, then what is measured on them as the server loads
// them.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "training/export/model_card.h"
#include "training/model/parameters.h"

namespace eta::training {

struct ModelToWrite {
  std::string folder;  // replaced, if it is there
  const Parameters* parameters = nullptr;
  std::string config_json;
  const CheckpointTexts* texts = nullptr;
  const HeldOut* held_out = nullptr;  // the index metric is measured on it; null: it is not
  const HeldOut* measured = nullptr;  // the card's figures are; null: nothing is measured
  // Of a model that the server does not run: how it is measured. Empty: as the server loads it.
  std::function<absl::StatusOr<HeldOutResult>(const HeldOut& text)> as_trained;
  const DualAscentOptions* asked = nullptr;  // with card.dense: the model is judged by them
  int threads = 0;
  ModelCard card;  // without what is measured
};

// config.json, model.safetensors, the tokenizer's files, index_metric.safetensors where records are
// of kind outlier and there is held-out text, README.md. The card, with what was measured.
absl::StatusOr<ModelCard> WriteModel(ModelToWrite model);

}  // namespace eta::training
