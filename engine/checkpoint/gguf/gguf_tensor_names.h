// GGUF's names of tensors as Hugging Face's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace eta {

// Heads whose rows stand in another order in files of some architectures (HasPermutedHeads): GGUF
// has the pairs that RoPE turns side by side, Hugging Face half a head apart. So it is in layers
// without RoPE too.
enum class PermutedHeads : uint8_t { kNone, kQuery, kKeyValue };

struct HuggingFaceName {
  std::string name;
  PermutedHeads permuted = PermutedHeads::kNone;  // if the architecture permutes
  bool index_metric = false;                      // of index_metric.safetensors
  // A layer's experts, one behind the other, or their biases: the name has a star where that of one
  // has its number.
  bool experts = false;
};

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight". `post_norms`: layers have four
// norms (GgufConfig), of which ffn_norm is the third. Nullopt for any other tensor than those of
// architectures llama, qwen2, qwen3, qwen3moe, smollm3, gpt-oss and gemma3 and what this project
// adds: "eta.blk.3.tau.weight" and ".bias", the predictor of thresholds, whose columns stand in
// Hugging Face's order of q whatever the architecture, and "eta.blk.3.index_metric" and
// "index_centre".
std::optional<HuggingFaceName> ToHuggingFaceName(std::string_view name, bool post_norms = false);

// The same from the other side, for tensors of a model and of its index_metric.safetensors. Of an
// expert: the name of the stack that it is in.
std::optional<std::string> ToGgufName(std::string_view hugging_face, bool post_norms = false);

// The name of one expert, by that of all.
std::string ExpertName(std::string_view experts, int64_t expert);
// Which expert of its layer the tensor is of; nullopt: of none.
std::optional<int64_t> ExpertOf(std::string_view hugging_face);

}  // namespace eta
