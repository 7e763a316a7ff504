// A model in training: forward and backward over sequences of one length. A layer is a column of
// calls (training_layer.cc). Not thread-safe.
//
// Memory: of every layer its input and the attention's output and log-sum-exp, of native sparse
// attention those of each branch, stay until the backward pass. With `recompute` the rest is
// computed again there, layer by layer, and all layers share one set of activations; attention, the
// dearest op, is not run again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "training/backend.h"
#include "training/model/model_spec.h"
#include "training/model/parameters.h"
#include "training/model/regulariser.h"

namespace eta::training {

struct LayerAttention;

// Sequences of one length, in host memory.
struct SequenceBatch {
  int32_t sequences = 0;              // B
  int32_t length = 0;                 // T
  std::span<const int32_t> tokens;    // [B, T]
  std::span<const int32_t> targets;   // [B, T], the next tokens; -1: none
  std::span<const float> ce_weights;  // [B, T]; empty: 1 everywhere
  std::span<const float> kl_weights;  // [B, T]; empty: 1 everywhere, if there is a teacher

  int64_t rows() const { return int64_t{sequences} * length; }
};

// What a step has of its schedules, and its share in the step: losses and regulariser are means
// over all rows of the step.
struct StepSettings {
  float beta = 1.0f;
  float gate_strength = 1.0f;
  RegulariserOptions regulariser;
  float ce_scale = 1.0f;  // of cross-entropy
  float kl_scale = 1.0f;  // of the divergence from the teacher
  int64_t sequences_in_step = 1;
};

// Sums over the rows of one batch, so that those of several add up.
struct BatchLoss {
  double cross_entropy = 0.0;  // sum over rows with a target, not weighted
  int64_t targets = 0;         // rows with a target
  int64_t hits = 0;  // of them, where the target was the most likely token; 0 with a backward pass
  double weighted = 0.0;    // this batch's part of the loss that is minimised, without regulariser
  double divergence = 0.0;  // sum over rows
  int64_t rows = 0;
  // This batch's part of the means over the step: [L, HQ] and [L, HB]. Empty without a gate; block
  // gates are measured if the regulariser has a share for them.
  std::vector<float> gate_density;
  std::vector<float> block_density;

  void Add(const BatchLoss& other);
  // Means over layers and heads; NaN without a gate.
  double MeanGateDensity() const;
  double MeanBlockDensity() const;
};

struct ModelLimits {
  int32_t sequences = 1;  // of the largest batch
  int32_t length = 0;     // of the longest sequence
  bool recompute = true;
  bool backward = true;  // false: forward only, with a fraction of the memory
};

// q [B T, HQ d] and k [B T, HKV d] of a layer after RoPE, in the backend's memory, until it
// returns.
using LayerObserver = std::function<void(int32_t layer, const Tensor& q, const Tensor& k)>;

class TrainingModel {
 public:
  // The parameters must live as long as the model. RESOURCE_EXHAUSTED for activations that do not
  // fit the device.
  static absl::StatusOr<std::unique_ptr<TrainingModel>> Create(const ModelSpec& spec,
                                                               Parameters& parameters,
                                                               const ModelLimits& limits);
  ~TrainingModel();

  const ModelSpec& spec() const { return spec_; }
  Parameters& parameters() const { return parameters_; }

  // Losses of a batch, and, if `backward`, their gradients and the regulariser's, added to the
  // parameters' gradients. `teacher`, null: none; on the same backend, it runs over the same
  // tokens. INVALID_ARGUMENT for a batch over the limits or tokens outside the vocabulary.
  absl::StatusOr<BatchLoss> Run(const SequenceBatch& batch, const StepSettings& settings,
                                TrainingModel* teacher, bool backward);

  // Forward alone: the last norm's output of every row, [B T, D] activations, until the next call.
  // `observe`: who wants to see what attention sees, layer by layer.
  absl::StatusOr<Tensor> Hidden(const SequenceBatch& batch, const StepSettings& settings,
                                const LayerObserver& observe = {});
  Tensor head() const;  // [V, D]

 private:
  struct State;

  TrainingModel(const ModelSpec& spec, Parameters& parameters, const ModelLimits& limits);
  absl::Status Allocate();
  absl::Status Check(const SequenceBatch& batch) const;
  absl::Status Forward(const SequenceBatch& batch, const StepSettings& settings,
                       const LayerObserver& observe);
  void HeadLosses(const SequenceBatch& batch, const StepSettings& settings,
                  const TrainingModel* teacher, bool backward, BatchLoss& loss);
  AttentionShape ShapeOf(int32_t sequences, int32_t length) const;
  LayerAttention AttentionOf(const SequenceBatch& batch, const StepSettings& settings) const;
  void PrepareGates(const SequenceBatch& batch, const StepSettings& settings);
  void MeasureGates(int32_t layer, const LayerAttention& attention);
  void ReadDensities(const LayerAttention& attention, BatchLoss& loss) const;
  void Backward(const SequenceBatch& batch, const StepSettings& settings);

  ModelSpec spec_;
  Parameters& parameters_;
  TrainingBackend& backend_;
  ModelLimits limits_;
  std::unique_ptr<State> state_;
};

}  // namespace eta::training
