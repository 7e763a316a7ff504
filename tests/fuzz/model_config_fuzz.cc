// Any bytes as config.json, as generation_config.json, as a shard index and as JSON under tight
// limits: refused, or values within their bounds.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "engine/base/json/json_check.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/text_model.h"
#include "engine/model/generation_config.h"
#include "engine/model/layer_groups.h"
#include "engine/model/model_config.h"
#include "engine/model/rope/rope_base.h"
#include "engine/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/testing/fuzz/checked_error.h"

namespace {

void CheckTightLimits(std::string_view text) {
  constexpr eta::JsonLimits kTight = {.max_bytes = 512, .max_depth = 2};
  const absl::Status valid = eta::CheckJson("text", text, kTight);
  if (!valid.ok()) return eta::fuzz::RequireReadable(valid);
  eta::fuzz::Require(text.size() <= kTight.max_bytes);
  const auto json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  eta::fuzz::Require(json.is_object());
  for (const auto& member : json) {
    for (const auto& inner : member) {
      eta::fuzz::Require(member.is_primitive() || inner.is_primitive());
    }
  }
}

void CheckGenerationConfig(std::string_view text) {
  eta::ModelConfig config;
  config.vocab_size = 100;
  const absl::Status status = eta::ReadGenerationConfig(text, config);
  if (!status.ok()) eta::fuzz::RequireReadable(status);
  eta::fuzz::Require(config.eos_ids.size() <= 16 && (status.ok() || config.eos_ids.empty()));
  for (const int32_t id : config.eos_ids) eta::fuzz::Require(id >= 0 && id < 100);
}

// Frequencies that a kernel can turn by: none faster than unscaled, none below the factor's share.
void CheckRope(const eta::ModelConfig& config) {
  using eta::fuzz::Require;
  const eta::RopeScaling& scaling = config.rope_scaling;
  Require(config.rope_theta >= 1.0f && config.rope_theta <= 1e12f);
  Require(config.max_context >= 1 && config.max_context <= eta::ModelConfig::kMaxTrainedContext);
  Require(scaling.factor >= 1.0 && scaling.attention_factor > 0.0);
  Require(std::isfinite(scaling.factor) && std::isfinite(scaling.attention_factor));
  for (int32_t pair = 0; pair < config.head_dim / 2; ++pair) {
    for (const double frequency : {0.159, 1e-6}) {
      const double scaled = scaling.Scaled(frequency, pair);
      Require(scaled <= frequency && scaled >= frequency / scaling.factor * 0.999999);
    }
  }
  for (const int64_t context : {1, 4096, 1 << 24}) {
    Require(eta::RopeTheta(config, context) >= config.rope_theta);
  }
}

// Scales that a layer computes with, and a rotation for each layer that has its own.
void CheckScales(const eta::ModelConfig& config) {
  using eta::fuzz::Require;
  Require(config.embedding_scale > 0.0f && config.embedding_scale <= 256.0f);
  Require(config.softmax_scale() > 0.0f && config.softmax_scale() <= 1.0f);
  for (const eta::LayerKind& layer : config.layers) {
    Require(!layer.local_rope || (config.local_rope_theta >= 1.0f && layer.window > 0));
  }
}

// What a model that also sees has as its text model is an object.
void CheckTextModel(std::string_view text) {
  if (!eta::CheckJson("text", text, {.max_bytes = size_t{1} << 20, .max_depth = 16}).ok()) return;
  const auto config = eta::TextModelConfig(text);
  if (!config.ok()) return eta::fuzz::RequireReadable(config.status());
  if (*config) eta::fuzz::Require(nlohmann::json::parse(**config, nullptr, false).is_object());
}

// Either no layer has experts, or every number is one that loops may trust.
void CheckExperts(const eta::ModelConfig& config) {
  using eta::fuzz::Require;
  const auto layers = static_cast<size_t>(config.num_layers);
  if (config.num_experts == 0) return Require(config.expert_layers.empty());
  Require(config.expert_layers.size() == layers && !config.has_predictor);
  Require(config.num_experts <= eta::ModelConfig::kMaxExperts && config.expert_ffn_dim >= 1);
  Require(config.experts_per_token >= 1 && config.experts_per_token <= config.num_experts);
  const auto with = std::ranges::count(config.expert_layers, true);
  Require(with >= 1 && with * config.num_experts <= eta::ModelConfig::kMaxExpertsOfModel);
}

// Every layer has a window of the model's or none, and a place in a group of its kind.
void CheckWindows(const eta::ModelConfig& config) {
  using eta::fuzz::Require;
  Require(config.sliding_window >= 0);
  int32_t with = 0;
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const int32_t window = config.layer(i).window;
    Require(window == 0 || window == config.sliding_window);
    with += window > 0 ? 1 : 0;
  }
  Require((with > 0) == (config.sliding_window > 0));
  Require(config.num_full_layers() + with == config.num_layers);
  const eta::LayerGroups groups = eta::GroupLayers(config);
  Require(groups.slots >= 1 && groups.slots <= config.num_layers);
  Require(static_cast<int32_t>(groups.places.size()) == config.num_layers);
  for (const auto& place : groups.places) {
    Require(place.group >= 0 && place.group < groups.size());
    Require(place.slot >= 0 && place.slot < groups.slots);
  }
  const eta::ModelConfig served = eta::ForContext(config, 4096);
  for (const eta::LayerKind& layer : served.layers) Require(layer.window < 4096);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckTightLimits(text);
  const auto index = eta::ParseShardIndex(text);
  if (index.ok()) {
    for (const auto& [tensor, file] : *index) {
      if (file.empty() || file.front() == '.' || file.find('/') != std::string::npos) std::abort();
    }
  }
  CheckGenerationConfig(text);
  CheckTextModel(text);
  const auto config = eta::ParseModelConfig(text);
  if (!config.ok()) return 0;
  if (config->head_dim < 2 || config->head_dim > 256 || config->head_dim % 2 != 0) std::abort();
  if (config->num_kv_heads < 1 || config->num_query_heads % config->num_kv_heads != 0) std::abort();
  if (config->vocab_size < 1 || config->num_layers < 1 || config->num_layers > 512) std::abort();
  if (config->bos_id >= config->vocab_size) std::abort();
  CheckRope(*config);
  CheckScales(*config);
  CheckExperts(*config);
  CheckWindows(*config);
  if (config->sink_blocks < 0 || config->sink_blocks > 1024) std::abort();
  if (config->temper_special && config->gate == eta::Gate::kNone) std::abort();
  if (config->has_predictor && config->has_relative_thresholds()) std::abort();
  if (!config->layers.empty() && config->layers.size() != static_cast<size_t>(config->num_layers)) {
    std::abort();
  }
  for (const int32_t id : config->eos_ids) {
    if (id < 0 || id >= config->vocab_size) std::abort();
  }
  if (config->num_layers <= 8 && eta::ValidateTensors(*config, {}).ok()) std::abort();
  // A tokenizer of ids alone takes any config whose special ids lie in its vocabulary.
  if (config->vocab_size > 4096) return 0;
  const auto ids_alone = eta::Tokenizer::Load({}, *config);
  if (!ids_alone.ok()) std::abort();
  eta::fuzz::RequireReadable((*ids_alone)->Encode("text", true).status());
  return 0;
}
