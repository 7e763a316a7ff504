// What a GGUF file's metadata say of the model, as Hugging Face's config.json says it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/gguf/gguf_metadata.h"
#include "engine/checkpoint/gguf/gguf_tokenizer.h"

namespace eta {

struct GgufConfig {
  std::string json;
  // Rows of q_proj and k_proj stand in another order (gguf_tensor_names.h).
  bool permuted_heads = false;
  int64_t num_query_heads = 0;
  int64_t num_kv_heads = 0;
};

// Of architecture smollm3 every so many-th layer has no RoPE. There is no key for it.
inline constexpr int32_t kGgufUnrotatedInterval = 4;

// Whether rows of q_proj and k_proj stand in another order in files of the architecture.
bool HasPermutedHeads(std::string_view architecture);

// Architectures llama (with a sliding window: model_type mistral), qwen2, qwen3, qwen3moe
// (qwen3_moe, normalised), smollm3 and gpt-oss (gpt_oss); with eta.family (gguf_eta.h) model_type
// eta. `rope_factors` is the tensor rope_freqs.weight, empty where there is none. UNIMPLEMENTED,
// naming it, for other architectures, for keys of the architecture that are not known, experts of
// architectures that have none, RoPE over a part of a head, rope scaling but linear, yarn and
// llama3's; INVALID_ARGUMENT for missing keys and wrong values, for a vocabulary that does not fit.
// Whether the numbers make a model that runs is ParseModelConfig's question.
absl::StatusOr<GgufConfig> MakeConfigJson(GgufMetadata& metadata, const GgufHeader& header,
                                          const GgufTokenizer& tokenizer,
                                          const std::vector<float>& rope_factors);

}  // namespace eta
