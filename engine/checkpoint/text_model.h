// The text model of a checkpoint that also sees: Gemma 3's of 4B and more. Its config.json keeps
// the text model's as text_config, and the names of its tensors have a prefix.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/checkpoint/safetensors_header.h"

namespace eta {

// config.json of the text model; nullopt: the checkpoint is of no such model. Fields that stand for
// both, ids and types of numbers, are taken from the outer object where the inner one has none.
// INVALID_ARGUMENT: text_config is missing, no object, or of another type of model.
absl::StatusOr<std::optional<std::string>> TextModelConfig(std::string_view config_json);

// The text model's own name of a tensor: "language_model.model.norm.weight" ->
// "model.norm.weight". Others stay. Nullopt: the tensor is of the vision tower, or of what leads
// from it into the text.
std::optional<std::string> TextModelName(std::string_view name);

// Of all tensors of the text model: its own names, and those that the files have. INVALID_ARGUMENT,
// naming it, for a tensor that is there under two names.
absl::StatusOr<std::map<std::string, std::string>> TextModelNames(
    const std::map<std::string, TensorInfo>& tensors);

}  // namespace eta
