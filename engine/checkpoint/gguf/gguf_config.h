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
  bool post_norms = false;  // four norms a layer, and weights of norms have a 1 in them
};

// Of architecture smollm3 every so many-th layer has no RoPE. There is no key for it.
inline constexpr int32_t kGgufUnrotatedInterval = 4;
// Of architecture gemma3, where no key says otherwise: every so many-th layer is full, and the
// others turn with this base.
inline constexpr int32_t kGgufWindowPeriod = 6;
inline constexpr float kGgufLocalRopeTheta = 1e4f;

// What stands under the root in the scale of queries, for which architecture gemma3 has no key. It
// follows from the size: the model of 62 layers alone has another one than the size of a head.
int64_t GgufQueryScalar(int64_t num_layers, int64_t model_dim, int64_t num_heads, int64_t head_dim);

// Whether rows of q_proj and k_proj stand in another order in files of the architecture.
bool HasPermutedHeads(std::string_view architecture);

// Architectures llama (with a sliding window: model_type mistral), qwen2, qwen3, qwen3moe
// (qwen3_moe, normalised), smollm3, gpt-oss (gpt_oss) and gemma3 (gemma3_text); with eta.family
// (gguf_eta.h) model_type eta. `rope_factors` is the tensor rope_freqs.weight, empty where there is
// none. UNIMPLEMENTED, naming it, for other architectures, for keys of the architecture that are
// not known, experts of architectures that have none, RoPE over a part of a head, rope scaling but
// linear, yarn and llama3's; INVALID_ARGUMENT for missing keys and wrong values, for a vocabulary
// that does not fit. Whether the numbers make a model that runs is ParseModelConfig's question.
absl::StatusOr<GgufConfig> MakeConfigJson(GgufMetadata& metadata, const GgufHeader& header,
                                          const GgufTokenizer& tokenizer,
                                          const std::vector<float>& rope_factors);

}  // namespace eta
