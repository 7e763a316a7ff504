// The parameters of a model in a backend's memory: float32 values, their copy in the type of
// products, float32 gradients. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/tensor_source.h"
#include "training/backend.h"
#include "training/model/initial_values.h"
#include "training/model/parameter_layout.h"

namespace eta::training {

class Parameters {
 public:
  // Values are undefined until one of the functions below has written them. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<Parameters>> Create(const ModelSpec& spec,
                                                            TrainedPart trained,
                                                            TrainingBackend& backend);

  const ParameterLayout& layout() const { return layout_; }
  TrainingBackend& backend() const { return backend_; }

  // Random matrices, norms of 1, biases of 0, predictors that admit everything.
  absl::Status Initialise(const InitOptions& options);
  // From a checkpoint; predictors that it does not have start as Initialise() leaves them.
  // FAILED_PRECONDITION for missing tensors, other shapes, NaN or infinity, and a tied model whose
  // lm_head is not its embedding.
  absl::Status Load(const TensorSource& source, const InitOptions& options);

  // One parameter in host memory. NOT_FOUND for a name that the model does not have;
  // INVALID_ARGUMENT for another number of elements.
  absl::StatusOr<std::vector<float>> Read(std::string_view name) const;
  absl::Status Write(std::string_view name, std::span<const float> values);
  // Gradient of a trained parameter, as accumulated so far.
  absl::StatusOr<std::vector<float>> ReadGradient(std::string_view name) const;

  // Flat arrays by the layout: of values [count], of gradients [trained_count].
  float* values() const { return values_->as<float>(); }
  float* gradients() const { return gradients_->as<float>(); }
  // The values in the backend's activation_dtype(), [count]; the values themselves if that is
  // float32.
  void* rounded() const { return rounded_ ? rounded_->data() : values_->data(); }
  // Null where rounded() are the values themselves.
  void* rounded_copy() const { return rounded_ ? rounded_->data() : nullptr; }
  void ZeroGradients();
  // Makes the rounded copy anew, after values() was written from outside.
  void Round();

  // Pointers by name, for layers. A weight has `rows` rows from the parameter of that name on, the
  // ones that lie behind it included: the stacked q, k and v.
  const float* Value(std::string_view name) const;  // null: the model has none
  float* Gradient(std::string_view name) const;     // null: none, or frozen
  Tensor Weight(std::string_view name, int64_t rows, int64_t cols) const;

 private:
  Parameters(const ModelSpec& spec, TrainedPart trained, TrainingBackend& backend);

  ModelSpec spec_;
  TrainingBackend& backend_;
  ParameterLayout layout_;
  std::unique_ptr<Buffer> values_;
  std::unique_ptr<Buffer> rounded_;    // null: the type of products is float32
  std::unique_ptr<Buffer> gradients_;  // null: nothing is trained
};

}  // namespace eta::training
