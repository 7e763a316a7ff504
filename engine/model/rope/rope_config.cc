// lint: untrusted-input, fuzz-covered
#include "engine/model/rope/rope_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/files/input_file.h"
#include "engine/model/rope/yarn.h"

namespace eta {
namespace {

constexpr int32_t kMaxContext = ModelConfig::kMaxTrainedContext;
constexpr double kMostFactor = 1e4;
constexpr double kLowestTheta = 1.0;
constexpr double kHighestTheta = 1e12;

// `finetuned` says how the weights came about; the rest is read, if the type has it.
constexpr std::array<std::string_view, 15> kKnown = {
    "rope_type",        "type",
    "rope_theta",       "partial_rotary_factor",
    "factor",           "low_freq_factor",
    "high_freq_factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast",
    "beta_slow",        "mscale",
    "mscale_all_dim",   "truncate",
    "finetuned"};

double ReadFactor(ConfigFields& fields) {
  return fields.Double("factor", 1.0, kMostFactor);
}

RopeScaling ReadLlama3(ConfigFields& fields) {
  RopeScaling scaling = {.type = RopeScalingType::kLlama3};
  scaling.factor = ReadFactor(fields);
  scaling.low_freq_factor = fields.Double("low_freq_factor", 1e-3, kMostFactor);
  scaling.high_freq_factor = fields.Double("high_freq_factor", 1e-3, kMostFactor);
  scaling.original_context = fields.Int("original_max_position_embeddings", 1, kMaxContext);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    fields.Invalid("high_freq_factor", "must be greater than low_freq_factor");
  }
  return scaling;
}

RopeScaling ReadYarn(ConfigFields& fields, int32_t head_dim, double rope_theta, int32_t positions) {
  constexpr double kMostTurns = 1e6;
  constexpr double kMostScale = 1e3;
  YarnOptions yarn;
  yarn.original_context = fields.Int("original_max_position_embeddings", 1, kMaxContext, positions);
  const double ratio = static_cast<double>(positions) / yarn.original_context;
  yarn.factor = fields.Double("factor", 1.0, kMostFactor, ratio);
  if (yarn.factor < 1.0) {
    fields.Invalid("original_max_position_embeddings",
                   "must be at most max_position_embeddings where there is no factor");
  }
  // 0 stands for the default in these four.
  yarn.beta_fast = fields.Double("beta_fast", 0.0, kMostTurns, 0.0);
  yarn.beta_slow = fields.Double("beta_slow", 0.0, kMostTurns, 0.0);
  if (yarn.beta_fast == 0.0) yarn.beta_fast = YarnOptions().beta_fast;
  if (yarn.beta_slow == 0.0) yarn.beta_slow = YarnOptions().beta_slow;
  if (yarn.beta_fast < yarn.beta_slow) {
    fields.Invalid("beta_fast", "must be at least beta_slow");
  }
  yarn.mscale = fields.Double("mscale", 0.0, kMostScale, 0.0);
  yarn.mscale_all_dim = fields.Double("mscale_all_dim", 0.0, kMostScale, 0.0);
  yarn.attention_factor = fields.Double("attention_factor", 1e-3, kMostScale, 0.0);
  yarn.truncate = fields.Bool("truncate", true);
  if (rope_theta <= kLowestTheta) fields.Invalid("rope_theta", "must be greater than 1 for yarn");
  return fields.status().ok() ? YarnScaling(yarn, head_dim, rope_theta) : RopeScaling();
}

RopeScaling ReadScaling(const std::string& type, ConfigFields& fields, const ModelConfig& config,
                        int32_t positions) {
  if (type == "default") return {};
  if (type == "linear") return {.type = RopeScalingType::kLinear, .factor = ReadFactor(fields)};
  if (type == "dynamic") return {.type = RopeScalingType::kDynamic, .factor = ReadFactor(fields)};
  if (type == "llama3") return ReadLlama3(fields);
  if (type == "yarn") return ReadYarn(fields, config.head_dim, config.rope_theta, positions);
  fields.Unsupported(
      "rope_type",
      Quoted(type) + " is not supported, only default, linear, dynamic, llama3 and yarn");
  return {};
}

void RefuseUnknown(ConfigFields& fields) {
  for (const auto& [name, value] : fields.json().items()) {
    if (std::ranges::find(kKnown, name) == kKnown.end()) {
      fields.Unsupported(Quoted(name), "is not known");
    }
  }
  if (fields.Double("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
    fields.Unsupported("partial_rotary_factor", "is not supported");
  }
}

// What the model was trained for: with these types most files name the length before the scaling.
int32_t TrainedContext(const RopeScaling& scaling, int32_t positions, bool scaled_positions) {
  double scaled = positions;
  if (scaling.type == RopeScalingType::kLinear && !scaled_positions) {
    // cannot wrap: floating point, and bounded below
    scaled = scaling.factor * positions;
  }
  if (scaling.type == RopeScalingType::kYarn) {
    // cannot wrap: floating point, and bounded below
    scaled = std::max(scaled, scaling.factor * scaling.original_context);
  }
  return static_cast<int32_t>(std::min<double>(std::floor(scaled), kMaxContext));
}

// The rotation of layers with a window. Newer files say it by kind of layer.
void ReadLocalRope(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  constexpr const char* kField = "rope_local_base_freq";
  config.local_rope_theta =
      fields.Float(kField, kLowestTheta, kHighestTheta, family.local_rope_theta);
  const ConfigFields::Json* kinds = fields.Find("rope_parameters");
  if (kinds == nullptr || !kinds->is_object()) return;
  const ConfigFields named(*kinds);
  const ConfigFields::Json* local = named.Find("sliding_attention");
  if (local == nullptr) return;
  if (!local->is_object()) {
    return fields.Invalid("rope_parameters.sliding_attention", "must be an object");
  }
  ConfigFields inner(*local, "rope_parameters.sliding_attention.");
  config.local_rope_theta =
      inner.Float("rope_theta", kLowestTheta, kHighestTheta, config.local_rope_theta);
  const std::string type = inner.String("rope_type", "default");
  if (type != "default") {
    inner.Unsupported("rope_type", Quoted(type) + " is not supported, only default");
  }
  RefuseUnknown(inner);
  fields.Fail(inner.status());
}

// `parameters` of the layers that see every key: a part of it where a family has two rotations.
const ConfigFields::Json* OfFullLayers(const ConfigFields::Json& parameters, bool by_kind) {
  if (!by_kind) return &parameters;
  for (const auto& [name, value] : parameters.items()) {
    if (name != "full_attention" && name != "sliding_attention") return &parameters;
  }
  const auto found = parameters.find("full_attention");
  return found == parameters.end() || found->is_null() ? nullptr : &*found;
}

}  // namespace

void ReadRope(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  const int32_t usual = family.shape.max_positions;
  const int32_t positions = fields.Int("max_position_embeddings", 1, kMaxContext,
                                       usual > 0 ? std::optional<int32_t>(usual) : std::nullopt);
  const bool by_kind = family.local_rope_theta > 0.0f;
  if (by_kind) ReadLocalRope(fields, family, config);
  config.rope_theta = fields.Float("rope_theta", kLowestTheta, kHighestTheta, family.rope_theta);
  std::optional<RopeScaling> found;
  const std::pair<const char*, const char*> objects[] = {{"rope_scaling", ""},
                                                         {"rope_parameters", "default"}};
  for (const auto& [name, untyped] : objects) {
    const ConfigFields::Json* object = fields.Find(name);
    if (object == nullptr) continue;
    if (!object->is_object()) return fields.Invalid(name, "must be an object");
    object = OfFullLayers(*object, by_kind);
    if (object == nullptr) continue;
    if (!object->is_object()) return fields.Invalid(name, "must be an object of objects");
    ConfigFields inner(*object, absl::StrCat(name, "."));
    config.rope_theta = inner.Float("rope_theta", kLowestTheta, kHighestTheta, config.rope_theta);
    const std::string type = inner.String("rope_type", inner.String("type", untyped).c_str());
    const RopeScaling scaling = ReadScaling(type, inner, config, positions);
    RefuseUnknown(inner);
    fields.Fail(inner.status());
    if (found && *found != scaling) fields.Invalid(name, "says something else than rope_scaling");
    found = scaling;
  }
  if (!found && family.names_scaling) fields.Invalid("rope_scaling", "must be there");
  config.rope_scaling = found.value_or(RopeScaling());
  const RopeScalingType type = config.rope_scaling.type;
  if ((type == RopeScalingType::kLlama3 || type == RopeScalingType::kYarn) &&
      fields.Find("original_max_position_embeddings") != nullptr) {
    fields.Unsupported("original_max_position_embeddings",
                       "is not supported beside the rope scaling, only inside");
  }
  config.max_context = TrainedContext(config.rope_scaling, positions, family.scaled_positions);
}

}  // namespace eta
