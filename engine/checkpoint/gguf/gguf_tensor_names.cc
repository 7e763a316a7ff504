// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_tensor_names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace eta {
namespace {

struct Part {
  std::string_view gguf;
  std::string_view hugging_face;
  bool has_bias;  // in some models
  PermutedHeads permuted = PermutedHeads::kNone;
};
constexpr Part kParts[] = {
    {"attn_norm", "input_layernorm", false},
    {"attn_q", "self_attn.q_proj", true, PermutedHeads::kQuery},
    {"attn_k", "self_attn.k_proj", true, PermutedHeads::kKeyValue},
    {"attn_v", "self_attn.v_proj", true},
    {"attn_q_norm", "self_attn.q_norm", false},
    {"attn_k_norm", "self_attn.k_norm", false},
    {"attn_output", "self_attn.o_proj", true},
    {"ffn_norm", "post_attention_layernorm", false},
    {"ffn_gate", "mlp.gate_proj", true},
    {"ffn_up", "mlp.up_proj", true},
    {"ffn_down", "mlp.down_proj", true},
};

// Takes "12." off the front; empty: there is no number, or one with a zero before it.
std::string_view TakeLayer(std::string_view& name) {
  const size_t end = name.find('.');
  if (end == std::string_view::npos || end < 1 || end > 4) return {};
  const std::string_view layer = name.substr(0, end);
  const bool digits = std::all_of(layer.begin(), layer.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
  if (!digits || (layer.size() > 1 && layer.front() == '0')) return {};
  name.remove_prefix(end + 1);
  return layer;
}

}  // namespace

std::optional<HuggingFaceName> ToHuggingFaceName(std::string_view name) {
  if (name == "token_embd.weight") return HuggingFaceName{"model.embed_tokens.weight"};
  if (name == "output_norm.weight") return HuggingFaceName{"model.norm.weight"};
  if (name == "output.weight") return HuggingFaceName{"lm_head.weight"};
  constexpr std::string_view kBlock = "blk.";
  if (!name.starts_with(kBlock)) return std::nullopt;
  name.remove_prefix(kBlock.size());
  const std::string_view layer = TakeLayer(name);
  if (layer.empty()) return std::nullopt;
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view kind = name.substr(dot + 1);
  for (const Part& part : kParts) {
    if (part.gguf != name.substr(0, dot)) continue;
    if (kind != "weight" && !(kind == "bias" && part.has_bias)) return std::nullopt;
    return HuggingFaceName{absl::StrCat("model.layers.", std::string(layer), ".",
                                        std::string(part.hugging_face), ".", std::string(kind)),
                           part.permuted};
  }
  return std::nullopt;
}

}  // namespace eta
