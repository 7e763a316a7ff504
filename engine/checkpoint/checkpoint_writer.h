// Writes a model as a folder in Hugging Face's layout: config.json, model.safetensors, the
// tokenizer, index_metric.safetensors and what else the checkpoint has of the files that Checkpoint
// reads. Where the weights stay as they are, eta_import.json names the model that they are of.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "engine/checkpoint/checkpoint.h"
#include "kernels/dtype.h"

namespace eta {

// `folder` is there whole afterwards, or as it was: absent or empty. `dtype`, float32, float16 or
// bfloat16: of all tensors of these three types, rounded to nearest; absent: as the checkpoint
// gives them. One tensor is in memory at a time. ALREADY_EXISTS if the folder has anything in it;
// OUT_OF_RANGE, naming tensor and number, if a finite number is beyond float16's.
absl::Status WriteCheckpoint(const Checkpoint& checkpoint, const std::string& folder,
                             std::optional<DType> dtype);

// What else stands in a model's folder, beside config and weights.
struct CheckpointTexts {
  TokenizerFiles tokenizer;
  std::optional<std::string> generation_config_json;
  const TensorReader* index_metric = nullptr;  // null: there is none
  std::optional<WeightsDigests>
      import_of;  // of the model whose weights these are; absent: new ones
};

// The same for tensors from anywhere. `folder` becomes the one that is described, and may be there
// before only if `replace`: then it is removed once the new one is whole.
absl::Status WriteCheckpoint(const TensorSource& tensors, const CheckpointTexts& texts,
                             const std::string& folder, std::optional<DType> dtype, bool replace);

}  // namespace eta
