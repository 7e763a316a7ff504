// What a profile's thresholds hold for: a model is the same if its weights, its tokenizer, its
// index metric and the fields of config.json that are read are the same. The layout of config.json,
// its other fields and the names of the files say nothing.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model_config.h"

namespace eta {

// SHA-256, 64 lower-case hexadecimal digits, over `config`, which was read from the checkpoint, the
// contents of the files with its weights, and those of the tokenizer's file and of
// index_metric.safetensors.
absl::StatusOr<std::string> ModelFingerprint(const ModelConfig& config,
                                             const Checkpoint& checkpoint);

}  // namespace eta
