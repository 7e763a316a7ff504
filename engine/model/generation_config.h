// generation_config.json of a checkpoint. Its end-of-text tokens count, as in transformers; what
// else it recommends (temperature, top_p ...) is a request's to say.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "engine/model/model_config.h"

namespace eta {

// Its eos_token_id, a number or a list of at most 16 ids of the vocabulary, replaces
// `config.eos_ids`. Absent, null or an empty list: they stay. INVALID_ARGUMENT for anything
// malformed, naming the field.
absl::Status ReadGenerationConfig(std::string_view json, ModelConfig& config);

}  // namespace eta
