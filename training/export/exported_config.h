// config.json of a model that was trained here, as the server reads it.
#pragma once

#include <string>
#include <string_view>

#include "training/model/model_spec.h"

namespace eta::training {

// Of a model that was trained from scratch. What the server does not have, the gate kAdditive and
// native sparse attention (model_type "nsa"), is named too, so that the server refuses the folder
// for what it is.
std::string PretrainedConfigJson(const ModelSpec& spec, float beta);

// Of a model that was adapted: the original's file, in which the model becomes one with a gate and
// a predictor. Its family is named, so that biases, norms of heads and windows stay.
std::string AdaptedConfigJson(std::string_view original, const ModelSpec& spec, float beta);

}  // namespace eta::training
