#include "engine/model/model_family.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace eta {
namespace {

constexpr ModelFamily kFamilies[] = {
    {.model_type = "eta", .has_predictor = true},
    // LLaMA 1 to 3.x, SmolLM2 and the many that took their form.
    {.model_type = "llama", .biases = BiasRule::kConfigured},
    {.model_type = "mistral",
     .window = WindowRule::kAllLayers,
     .num_kv_heads = 8,
     .sliding_window = 4096},
    // Qwen2 and Qwen2.5.
    {.model_type = "qwen2",
     .biases = BiasRule::kQkv,
     .window = WindowRule::kConfigured,
     .num_kv_heads = 32,
     .sliding_window = 4096,
     .max_window_layers = 28},
    {.model_type = "qwen3",
     .biases = BiasRule::kConfigured,
     .head_norms = true,
     .window = WindowRule::kConfigured,
     .head_dim = 128,
     .num_kv_heads = 32,
     .sliding_window = 4096,
     .max_window_layers = 28},
    // Qwen3-30B-A3B and its kin: softmax over all experts, no expert that all tokens share.
    {.model_type = "qwen3_moe",
     .biases = BiasRule::kConfigured,
     .head_norms = true,
     .window = WindowRule::kAllIfAsked,
     .num_kv_heads = 4,
     .sliding_window = 4096,
     .experts = {.count = 128, .per_token = 8, .ffn_dim = 768}},
    // gpt-oss-20b and -120b: softmax over the chosen experts.
    {.model_type = "gpt_oss",
     .biases = BiasRule::kUnlessOff,
     .window = WindowRule::kPeriod,
     .head_dim = 64,
     .num_kv_heads = 8,
     .sliding_window = 128,
     .window_period = 2,
     .rope_theta = 150000.0f,
     .experts = {.count = 128, .per_token = 4, .normalised = true, .biases = true},
     .activation = Activation::kClamped,
     .sinks = true,
     .names_scaling = true},
    {.model_type = "smollm3",
     .biases = BiasRule::kConfigured,
     .window = WindowRule::kUnrotated,
     .num_kv_heads = 4,
     .rope_theta = 2e6f,
     .tied = true,
     .unrotated_interval = 4},
    // Gemma 3, its text.
    {.model_type = "gemma3_text",
     .head_norms = true,
     .window = WindowRule::kPeriod,
     .head_dim = 256,
     .num_kv_heads = 4,
     .sliding_window = 4096,
     .window_period = 6,
     .rope_theta = 1e6f,
     .tied = true,
     .shape =
         {.vocab_size = 262208, .num_query_heads = 8, .max_positions = 131072, .norm_eps = 1e-6},
     .activation = Activation::kGelu,
     .post_norms = true,
     .unit_norms = true,
     .scales_embedding = true,
     .query_scalar = 256.0,
     .local_rope_theta = 1e4f,
     .scaled_positions = true},
};

}  // namespace

std::span<const ModelFamily> ModelFamilies() {
  return kFamilies;
}

const ModelFamily* FindModelFamily(std::string_view model_type) {
  const auto* const found = std::ranges::find(kFamilies, model_type, &ModelFamily::model_type);
  return found == std::end(kFamilies) ? nullptr : found;
}

std::string KnownModelTypes() {
  std::string types;
  for (const ModelFamily& family : kFamilies) {
    const bool last = &family == std::end(kFamilies) - 1;
    absl::StrAppend(&types, types.empty() ? "" : (last ? " and " : ", "),
                    std::string(family.model_type));
  }
  return types;
}

}  // namespace eta
