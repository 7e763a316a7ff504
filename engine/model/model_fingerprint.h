// What a profile's thresholds hold for: a model is the same if its weights, its tokenizer, its
// index metric and the fields of config.json that are read are the same. The layout of config.json,
// its other fields, the names of the files and the chat template say nothing. Of a GGUF file its
// tensors and its vocabulary count, and what config.json is made of. A folder that was imported
// from it without another type is the same model. Served with layers that have a window it is
// another model than served for contexts so short that these are full layers (ForContext): they
// have no thresholds then.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model_config.h"

namespace eta {

// SHA-256, 64 lower-case hexadecimal digits, over `config`, which was read from the checkpoint, for
// the context that it is served for, and the checkpoint's digests of weights, index metric and
// tokenizer.
absl::StatusOr<std::string> ModelFingerprint(const ModelConfig& config,
                                             const Checkpoint& checkpoint);

}  // namespace eta
