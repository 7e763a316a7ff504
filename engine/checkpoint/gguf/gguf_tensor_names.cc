// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_tensor_names.h"

#include <algorithm>
#include <span>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace eta {
namespace {

struct Part {
  std::string_view gguf;
  std::string_view hugging_face;
  bool has_bias = false;  // in some models
  PermutedHeads permuted = PermutedHeads::kNone;
  // Set: only in files whose layers have four norms, or only in others.
  std::optional<bool> post_norms = {};
};
constexpr std::string_view kBlock = "blk.";
constexpr std::string_view kLayers = "model.layers.";
constexpr std::string_view kMetricLayers = "layers.";
constexpr std::string_view kExperts = ".mlp.experts.";
constexpr char kAnyExpert = '*';
constexpr std::string_view kAdded = "eta.";  // before what llama.cpp does not have

constexpr Part kWhole[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};
constexpr std::string_view kSinks = "self_attn.sinks";  // without ".weight"
constexpr Part kMetricParts[] = {{"index_metric", "metric"}, {"index_centre", "centre"}};
constexpr Part kAddedParts[] = {{"tau", "self_attn.tau_proj", true}};
constexpr Part kParts[] = {
    {"attn_norm", "input_layernorm", false},
    {"attn_q", "self_attn.q_proj", true, PermutedHeads::kQuery},
    {"attn_k", "self_attn.k_proj", true, PermutedHeads::kKeyValue},
    {"attn_v", "self_attn.v_proj", true},
    {"attn_q_norm", "self_attn.q_norm", false},
    {"attn_k_norm", "self_attn.k_norm", false},
    {"attn_output", "self_attn.o_proj", true},
    {"attn_sinks", "self_attn.sinks"},
    {"ffn_norm", "post_attention_layernorm", false, PermutedHeads::kNone, false},
    {"ffn_norm", "pre_feedforward_layernorm", false, PermutedHeads::kNone, true},
    {"post_attention_norm", "post_attention_layernorm", false},  // of Gemma 3 and gpt-oss
    {"post_ffw_norm", "post_feedforward_layernorm", false, PermutedHeads::kNone, true},
    {"ffn_gate", "mlp.gate_proj", true},
    {"ffn_up", "mlp.up_proj", true},
    {"ffn_down", "mlp.down_proj", true},
    {"ffn_gate_inp", "mlp.gate", true},
    {"ffn_gate_exps", "mlp.experts.*.gate_proj", true},
    {"ffn_up_exps", "mlp.experts.*.up_proj", true},
    {"ffn_down_exps", "mlp.experts.*.down_proj", true},
};

std::span<const Part> PartsOf(bool added) {
  return added ? std::span<const Part>(kAddedParts) : std::span<const Part>(kParts);
}

// Takes a number such as "12." off the front; empty: there is no number, or one with a zero before
// it.
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

std::optional<HuggingFaceName> ToHuggingFaceName(std::string_view name, bool post_norms) {
  for (const Part& part : kWhole) {
    if (name == part.gguf) return HuggingFaceName{std::string(part.hugging_face)};
  }
  const bool added = name.starts_with(kAdded);
  if (added) name.remove_prefix(kAdded.size());
  if (!name.starts_with(kBlock)) return std::nullopt;
  name.remove_prefix(kBlock.size());
  const std::string_view layer = TakeLayer(name);
  if (layer.empty()) return std::nullopt;
  const auto in_layer = [&layer](std::string_view before, std::string_view part) {
    return absl::StrCat(std::string(before), std::string(layer), ".", std::string(part));
  };
  if (added) {
    for (const Part& part : kMetricParts) {
      if (name != part.gguf) continue;
      return HuggingFaceName{in_layer(kMetricLayers, part.hugging_face), PermutedHeads::kNone,
                             /*index_metric=*/true};
    }
  }
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view kind = name.substr(dot);
  for (const Part& part : PartsOf(added)) {
    if (part.gguf != name.substr(0, dot) || part.post_norms.value_or(post_norms) != post_norms) {
      continue;
    }
    if (kind != ".weight" && !(kind == ".bias" && part.has_bias)) return std::nullopt;
    const std::string_view ending = part.hugging_face == kSinks ? std::string_view() : kind;
    return HuggingFaceName{in_layer(kLayers, part.hugging_face).append(ending), part.permuted,
                           /*index_metric=*/false,
                           part.hugging_face.find(kAnyExpert) != std::string_view::npos};
  }
  return std::nullopt;
}

namespace {

// Where an expert's number stands in its tensor's name; empty: nowhere.
std::string_view NumberOfExpert(std::string_view name) {
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos || !name.starts_with(kLayers)) return {};
  name.remove_prefix(at + kExperts.size());
  return TakeLayer(name);
}

}  // namespace

std::string ExpertName(std::string_view experts, int64_t expert) {
  const size_t star = experts.find(kAnyExpert);
  return absl::StrCat(std::string(experts.substr(0, star)), expert,
                      std::string(experts.substr(star + 1)));
}

std::optional<int64_t> ExpertOf(std::string_view name) {
  const std::string_view number = NumberOfExpert(name);
  int64_t expert = 0;
  if (!absl::SimpleAtoi(std::string(number), &expert)) return std::nullopt;
  return expert;
}

std::optional<std::string> ToGgufName(std::string_view hugging_face, bool post_norms) {
  std::string of_all(hugging_face);
  if (const std::string_view number = NumberOfExpert(hugging_face); !number.empty()) {
    of_all.replace(static_cast<size_t>(number.data() - hugging_face.data()), number.size(), 1,
                   kAnyExpert);
  }
  std::string_view name = of_all;
  for (const Part& part : kWhole) {
    if (name == part.hugging_face) return std::string(part.gguf);
  }
  const bool metric = name.starts_with(kMetricLayers);
  if (!metric && !name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(metric ? kMetricLayers.size() : kLayers.size());
  const std::string layer(TakeLayer(name));
  if (layer.empty()) return std::nullopt;
  if (metric) {
    for (const Part& part : kMetricParts) {
      if (name != part.hugging_face) continue;
      return absl::StrCat(std::string(kAdded), std::string(kBlock), layer, ".",
                          std::string(part.gguf));
    }
    return std::nullopt;
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view kind = name.substr(dot);
  for (const bool added : {false, true}) {
    for (const Part& part : PartsOf(added)) {
      if (part.hugging_face != name.substr(0, dot) ||
          part.post_norms.value_or(post_norms) != post_norms) {
        continue;
      }
      if (kind != ".weight" && !(kind == ".bias" && part.has_bias)) return std::nullopt;
      return absl::StrCat(added ? std::string(kAdded) : "", std::string(kBlock), layer, ".",
                          std::string(part.gguf), std::string(kind));
    }
  }
  return std::nullopt;
}

}  // namespace eta
