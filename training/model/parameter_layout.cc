#include "training/model/parameter_layout.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace eta::training {
namespace {

constexpr int64_t kAlignment = 64;  // elements

// Parameters that lie side by side.
struct Unit {
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;
  bool decayed = false;
  bool predictor = false;
};

// Rows in the order of their readers: one RoPE turns q and the keys after it, and a compression's
// keys or values are columns side by side.
void AddNativeSparse(const ModelSpec& spec, const std::string& attention,
                     std::vector<Unit>& units) {
  const ModelConfig& c = spec.config;
  const int64_t dim = c.model_dim;
  Unit projections = {{{attention + "q_proj.weight", {c.query_dim(), dim}}}, true};
  for (const char* name :
       {"k_selection", "k_window", "v_selection", "v_window", "k_compression", "v_compression"}) {
    projections.tensors.push_back({attention + name + "_proj.weight", {c.kv_dim(), dim}});
  }
  units.push_back(projections);
  const int64_t hidden = spec.compressor_dim();
  for (const char* name : {"k_compressor.", "v_compressor."}) {
    const std::string map = attention + name;
    units.push_back(
        {{{map + "gate_up_proj.weight", {2 * hidden, int64_t{kCompressedWindow} * c.head_dim}}},
         true});
    units.push_back({{{map + "gate_up_proj.bias", {2 * hidden}}}});
    units.push_back({{{map + "down_proj.weight", {c.head_dim, hidden}}}, true});
  }
  const int64_t gates = int64_t{kBranches} * c.num_query_heads;
  units.push_back({{{attention + "branch_gate_proj.weight", {gates, dim}}}, true});
  units.push_back({{{attention + "branch_gate_proj.bias", {gates}}}});
}

void AddGated(const ModelSpec& spec, const std::string& attention, std::vector<Unit>& units) {
  const ModelConfig& c = spec.config;
  const int64_t dim = c.model_dim;
  units.push_back({{{attention + "q_proj.weight", {c.query_dim(), dim}},
                    {attention + "k_proj.weight", {c.kv_dim(), dim}},
                    {attention + "v_proj.weight", {c.kv_dim(), dim}}},
                   true});
  if (c.qkv_bias) {
    units.push_back({{{attention + "q_proj.bias", {c.query_dim()}},
                      {attention + "k_proj.bias", {c.kv_dim()}},
                      {attention + "v_proj.bias", {c.kv_dim()}}}});
  }
  if (c.head_norms) {
    units.push_back({{{attention + "q_norm.weight", {c.head_dim}}}});
    units.push_back({{{attention + "k_norm.weight", {c.head_dim}}}});
  }
  if (spec.thresholds == ThresholdSource::kPredicted) {
    units.push_back(
        {{{attention + "tau_proj.weight", {c.num_query_heads, c.query_dim()}}}, false, true});
  }
  if (spec.has_thresholds()) {
    units.push_back({{{attention + "tau_proj.bias", {c.num_query_heads}}}, false, true});
  }
}

void AddLayer(const ModelSpec& spec, const std::string& prefix, std::vector<Unit>& units) {
  const ModelConfig& c = spec.config;
  const int64_t dim = c.model_dim;
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  units.push_back({{{prefix + "input_layernorm.weight", {dim}}}});
  if (spec.is_native_sparse()) {
    AddNativeSparse(spec, attention, units);
  } else {
    AddGated(spec, attention, units);
  }
  units.push_back({{{attention + "o_proj.weight", {dim, c.query_dim()}}}, true});
  if (c.out_bias) units.push_back({{{attention + "o_proj.bias", {dim}}}});
  units.push_back({{{prefix + "post_attention_layernorm.weight", {dim}}}});
  units.push_back(
      {{{mlp + "gate_proj.weight", {c.ffn_dim, dim}}, {mlp + "up_proj.weight", {c.ffn_dim, dim}}},
       true});
  units.push_back({{{mlp + "down_proj.weight", {dim, c.ffn_dim}}}, true});
}

std::vector<Unit> Units(const ModelSpec& spec) {
  const ModelConfig& c = spec.config;
  std::vector<Unit> units;
  units.push_back({{{"model.embed_tokens.weight", {c.vocab_size, c.model_dim}}}});
  for (int32_t i = 0; i < c.num_layers; ++i) AddLayer(spec, LayerPrefix(i), units);
  units.push_back({{{"model.norm.weight", {c.model_dim}}}});
  if (!c.tie_word_embeddings) {
    units.push_back({{{"lm_head.weight", {c.vocab_size, c.model_dim}}}, true});
  }
  return units;
}

bool IsTrained(const Unit& unit, TrainedPart trained) {
  return trained == TrainedPart::kAll || (trained == TrainedPart::kPredictor && unit.predictor);
}

}  // namespace

std::string LayerPrefix(int32_t layer) {
  return absl::StrCat("model.layers.", layer, ".");
}

ParameterLayout::ParameterLayout(const ModelSpec& spec, TrainedPart trained) {
  const std::vector<Unit> units = Units(spec);
  const auto place = [&](bool is_trained, bool decayed) {
    const int64_t begin = count_;
    for (const Unit& unit : units) {
      if (IsTrained(unit, trained) != is_trained || unit.decayed != decayed) continue;
      for (const auto& [name, shape] : unit.tensors) {
        int64_t count = 1;
        for (const int64_t dim : shape) count *= dim;
        by_name_.emplace(name, parameters_.size());
        parameters_.push_back({name, shape, count_, count, decayed, is_trained});
        count_ += count;
      }
      count_ = (count_ + kAlignment - 1) / kAlignment * kAlignment;
    }
    if (is_trained && count_ > begin) trained_runs_.push_back({begin, count_, decayed});
  };
  place(true, true);
  place(true, false);
  trained_count_ = count_;
  place(false, true);
  place(false, false);
}

const Parameter* ParameterLayout::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &parameters_[found->second];
}

}  // namespace eta::training
