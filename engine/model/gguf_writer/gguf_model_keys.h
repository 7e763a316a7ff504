// A model's shape and how its attention prunes, as GGUF's metadata say it: what MakeConfigJson
// (engine/checkpoint/gguf/gguf_config.h) reads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/gguf/gguf_config.h"
#include "engine/model/gguf_writer/gguf_head.h"
#include "engine/model/model_config.h"

namespace eta {

struct GgufModelKeys {
  std::string architecture;         // llama, qwen2, qwen3, qwen3moe or smollm3
  std::vector<float> rope_factors;  // the tensor rope_freqs.weight; empty: there is none

  // Rows of q_proj and k_proj stand in another order in the file.
  bool permuted_heads() const { return HasPermutedHeads(architecture); }
};

// Sets the keys in `head`. REQUIRES: `config` is ParseModelConfig(config_json)'s. UNIMPLEMENTED,
// naming the field, for what the format has no key for: RoPE scaling of type dynamic, layers
// without RoPE but every fourth of smollm3, layers without experts beside those with, experts whose
// weights are not normed.
absl::StatusOr<GgufModelKeys> SetModelKeys(std::string_view config_json, const ModelConfig& config,
                                           GgufHead& head);

}  // namespace eta
