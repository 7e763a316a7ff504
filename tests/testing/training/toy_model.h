// A model of a few thousand parameters with data that it can learn, and a backend that wraps
// another.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "training/backend.h"
#include "training/model/model_spec.h"
#include "training/model/parameters.h"
#include "training/model/training_model.h"
#include "training/trainer/batch_source.h"

namespace eta::training::testing {

struct ToyOptions {
  AttentionScheme attention = AttentionScheme::kGated;
  // Not of native sparse attention, which has neither.
  GateKind gate = GateKind::kSilu;
  ThresholdSource thresholds = ThresholdSource::kPredicted;
  bool biases = false;  // of q, k, v and o
  bool head_norms = false;
  bool tied = true;
  bool unrotated = false;  // the last layer has no RoPE
  int32_t num_layers = 2;
  int32_t head_dim = 6;
};

ModelSpec ToySpec(const ToyOptions& options = {});

// A model with everything that it stands on.
struct ToyModel {
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<TrainingModel> model;
};
ToyModel MakeToy(const ModelSpec& spec, TrainingBackend& backend, const ModelLimits& limits,
                 TrainedPart trained = TrainedPart::kAll, const InitOptions& init = {});

// Sequences that repeat a random phrase, so that attention can foretell their tokens. `position`
// alone decides what Next() gives.
class PhraseSource final : public BatchSource {
 public:
  PhraseSource(int32_t vocab, int32_t sequences, int32_t length)
      : vocab_(vocab), sequences_(sequences), length_(length) {}

  absl::Status Next(MicroBatch& batch) override;

  int64_t position = 0;  // batches so far
  int64_t stride = 1;    // batches from one to the next
  int64_t end = -1;      // of the source; -1: none

 private:
  int32_t vocab_;
  int32_t sequences_;
  int32_t length_;
};

}  // namespace eta::training::testing
