// lint: untrusted-input, fuzz-covered
#include "engine/model/model_config.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/input_file.h"
#include "engine/base/json/json_check.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kLimits = {.max_bytes = size_t{1} << 20, .max_depth = 16};
constexpr size_t kMaxEosIds = 16;
constexpr int32_t kMaxGroupSize = 32;  // heads of a group stand in a 32-bit mask
constexpr int32_t kMaxContext = 1 << 24;

absl::Status Invalid(const std::string& field, const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat("config.json: ", field, " ", sentence));
}

absl::Status Unsupported(const std::string& field, const std::string& sentence) {
  return absl::UnimplementedError(absl::StrCat("config.json: ", field, " ", sentence));
}

// Reads fields one after the other and keeps the first error. A field that is null counts as
// absent. Errors name fields with `prefix` before them.
class FieldReader {
 public:
  explicit FieldReader(const Json& json, std::string prefix = "")
      : json_(json), prefix_(std::move(prefix)) {}

  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  const Json* Find(const char* field) const {
    const auto it = json_.find(field);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }

  int32_t Int(const char* field, int32_t low, int32_t high, std::optional<int32_t> absent = {}) {
    const Json* value = Find(field);
    if (value == nullptr) {
      if (!absent) Fail(Invalid(prefix_ + field, "is missing"));
      return absent.value_or(low);
    }
    return ToInt(field, *value, low, high);
  }

  int32_t ToInt(const char* field, const Json& value, int32_t low, int32_t high) {
    // number_unsigned may pass int64: compared before it is converted.
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() <= static_cast<uint64_t>(high)
                          : value.is_number_integer() && value.get<int64_t>() <= high;
    if (!fits || value.get<int64_t>() < low) {
      Fail(Invalid(prefix_ + field,
                   absl::StrCat("must be a whole number from ", low, " to ", high)));
      return low;
    }
    return value.get<int32_t>();
  }

  double Double(const char* field, double low, double high, std::optional<double> absent = {}) {
    const Json* value = Find(field);
    if (value == nullptr) {
      if (!absent) Fail(Invalid(prefix_ + field, "is missing"));
      return absent.value_or(low);
    }
    if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high)) {
      Fail(Invalid(prefix_ + field, absl::StrCat("must be a number from ", low, " to ", high)));
      return low;
    }
    return value->get<double>();
  }

  float Float(const char* field, double low, double high, std::optional<double> absent = {}) {
    return static_cast<float>(Double(field, low, high, absent));
  }

  bool Bool(const char* field) {
    const Json* value = Find(field);
    if (value != nullptr && !value->is_boolean()) {
      Fail(Invalid(prefix_ + field, "must be true or false"));
    }
    return value != nullptr && value->is_boolean() && value->get<bool>();
  }

  std::string String(const char* field, const char* absent) {
    const Json* value = Find(field);
    if (value == nullptr) return absent;
    if (!value->is_string()) {
      Fail(Invalid(prefix_ + field, "must be a string"));
      return absent;
    }
    return value->get<std::string>();
  }

 private:
  const Json& json_;
  std::string prefix_;
  absl::Status status_;
};

// What other models of the family may carry and this runtime does not compute.
void RefuseUnsupported(FieldReader& fields) {
  for (const char* field : {"attention_bias", "mlp_bias"}) {
    if (fields.Bool(field)) fields.Fail(Unsupported(field, "true is not supported"));
  }
  for (const char* field : {"sliding_window", "quantization_config", "partial_rotary_factor"}) {
    if (fields.Find(field) != nullptr) fields.Fail(Unsupported(field, "is not supported"));
  }
  const std::string activation = fields.String("hidden_act", "silu");
  if (activation != "silu") {
    fields.Fail(Unsupported("hidden_act", Quoted(activation) + " is not supported, only silu"));
  }
}

// Of `object`, the file's `name`.
RopeScaling ReadLlama3Scaling(const std::string& name, const Json& object, FieldReader& fields) {
  constexpr double kMost = 1e4;
  FieldReader inner(object, name + ".");
  RopeScaling scaling;
  scaling.factor = inner.Double("factor", 1.0, kMost);
  scaling.low_freq_factor = inner.Double("low_freq_factor", 1e-3, kMost);
  scaling.high_freq_factor = inner.Double("high_freq_factor", 1e-3, kMost);
  scaling.original_context = inner.Int("original_max_position_embeddings", 1, kMaxContext);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    inner.Fail(Invalid(name + ".high_freq_factor", "must be greater than low_freq_factor"));
  }
  fields.Fail(inner.status());
  return scaling;
}

// rope_theta stands at the top, the scaling in rope_scaling; newer files have both in
// rope_parameters. Older ones call the type of scaling `type`.
void ReadRope(FieldReader& fields, ModelConfig& config) {
  constexpr double kLow = 1.0, kHigh = 1e12;
  config.rope_theta = fields.Float("rope_theta", kLow, kHigh, 10000.0f);
  std::optional<RopeScaling> found;
  const std::pair<const char*, const char*> objects[] = {{"rope_scaling", ""},
                                                         {"rope_parameters", "default"}};
  for (const auto& [name, untyped] : objects) {
    const Json* object = fields.Find(name);
    if (object == nullptr) continue;
    if (!object->is_object()) {
      fields.Fail(Invalid(name, "must be an object"));
      return;
    }
    FieldReader inner(*object, absl::StrCat(name, "."));
    config.rope_theta = inner.Float("rope_theta", kLow, kHigh, config.rope_theta);
    const std::string type = inner.String("rope_type", inner.String("type", untyped).c_str());
    if (type != "default" && type != "llama3") {
      inner.Fail(Unsupported(absl::StrCat(name, ".rope_type"),
                             Quoted(type) + " is not supported, only default and llama3"));
    }
    if (inner.Find("partial_rotary_factor") != nullptr) {
      inner.Fail(Unsupported(absl::StrCat(name, ".partial_rotary_factor"), "is not supported"));
    }
    fields.Fail(inner.status());
    const RopeScaling scaling =
        type == "llama3" ? ReadLlama3Scaling(name, *object, fields) : RopeScaling();
    if (found && *found != scaling) {
      fields.Fail(Invalid(name, "says something else than rope_scaling"));
    }
    found = scaling;
  }
  config.rope_scaling = found.value_or(RopeScaling());
}

void ReadSpecialIds(FieldReader& fields, ModelConfig& config) {
  const int32_t last = config.vocab_size - 1;
  if (fields.Find("bos_token_id") != nullptr) config.bos_id = fields.Int("bos_token_id", 0, last);
  const Json* eos = fields.Find("eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) {
    config.eos_ids = {fields.ToInt("eos_token_id", *eos, 0, last)};
    return;
  }
  if (eos->size() > kMaxEosIds) {
    fields.Fail(Invalid("eos_token_id", absl::StrCat("has over ", kMaxEosIds, " entries")));
    return;
  }
  for (const Json& id : *eos) config.eos_ids.push_back(fields.ToInt("eos_token_id", id, 0, last));
}

void ReadGate(FieldReader& fields, ModelConfig& config) {
  const std::string model_type = fields.String("model_type", "");
  config.has_predictor = model_type == "eta";
  if (model_type != "eta" && model_type != "llama") {
    fields.Fail(
        Unsupported("model_type", Quoted(model_type) + " is not supported, only eta and llama"));
  }
  if (!config.has_predictor) return;
  const std::string gate = fields.String("eta_gate", "silu");
  if (gate != "silu" && gate != "none") {
    fields.Fail(Unsupported("eta_gate", Quoted(gate) + " is not supported, only silu and none"));
  }
  config.gate = gate == "silu" ? Gate::kSilu : Gate::kNone;
  config.beta = fields.Float("eta_beta", 1e-3, 1000.0);
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text) {
  const absl::Status valid = CheckJson("config.json", text, kLimits);
  if (!valid.ok()) return valid;
  const Json json = Json::parse(text.begin(), text.end(), nullptr, false);

  FieldReader fields(json);
  ModelConfig config;
  ReadGate(fields, config);
  RefuseUnsupported(fields);
  config.vocab_size = fields.Int("vocab_size", 1, 1 << 20);
  config.model_dim = fields.Int("hidden_size", 1, 65536);
  config.ffn_dim = fields.Int("intermediate_size", 1, 262144);
  config.num_layers = fields.Int("num_hidden_layers", 1, 512);
  config.num_query_heads = fields.Int("num_attention_heads", 1, 1024);
  config.num_kv_heads = fields.Int("num_key_value_heads", 1, 1024, config.num_query_heads);
  config.norm_eps = fields.Float("rms_norm_eps", 1e-12, 0.1);
  config.max_context = fields.Int("max_position_embeddings", 1, kMaxContext);
  ReadRope(fields, config);
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings");
  config.block_size = fields.Int("eta_block_size", 4, 128, 64);
  ReadSpecialIds(fields, config);
  if (!fields.status().ok()) return fields.status();

  if (config.num_query_heads % config.num_kv_heads != 0) {
    return Invalid("num_key_value_heads", "must divide num_attention_heads");
  }
  if (config.group_size() > kMaxGroupSize) {
    return Invalid("num_attention_heads", "must be at most 32 for each key-value head");
  }
  if (fields.Find("head_dim") != nullptr) {
    config.head_dim = fields.Int("head_dim", 2, 256);
    if (!fields.status().ok()) return fields.status();
  } else if (config.model_dim % config.num_query_heads == 0) {
    config.head_dim = config.model_dim / config.num_query_heads;
  }
  if (config.head_dim < 2 || config.head_dim > 256 || config.head_dim % 2 != 0) {
    return Invalid("head_dim",
                   "(or hidden_size / num_attention_heads) must be even, from 2 to 256");
  }
  if (config.block_size % 4 != 0) return Invalid("eta_block_size", "must be a multiple of 4");
  return config;
}

std::map<std::string, std::vector<int64_t>> ExpectedTensors(const ModelConfig& config) {
  const int64_t dim = config.model_dim;
  std::map<std::string, std::vector<int64_t>> expected;
  expected["model.embed_tokens.weight"] = {config.vocab_size, dim};
  expected["model.norm.weight"] = {dim};
  if (!config.tie_word_embeddings) expected["lm_head.weight"] = {config.vocab_size, dim};
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    expected[layer + "input_layernorm.weight"] = {dim};
    expected[layer + "self_attn.q_proj.weight"] = {config.query_dim(), dim};
    expected[layer + "self_attn.k_proj.weight"] = {config.kv_dim(), dim};
    expected[layer + "self_attn.v_proj.weight"] = {config.kv_dim(), dim};
    expected[layer + "self_attn.o_proj.weight"] = {dim, config.query_dim()};
    if (config.has_predictor) {
      expected[layer + "self_attn.tau_proj.weight"] = {config.num_query_heads, config.query_dim()};
      expected[layer + "self_attn.tau_proj.bias"] = {config.num_query_heads};
    }
    expected[layer + "post_attention_layernorm.weight"] = {dim};
    expected[layer + "mlp.gate_proj.weight"] = {config.ffn_dim, dim};
    expected[layer + "mlp.up_proj.weight"] = {config.ffn_dim, dim};
    expected[layer + "mlp.down_proj.weight"] = {dim, config.ffn_dim};
  }
  return expected;
}

absl::Status ValidateTensors(const ModelConfig& config,
                             const std::map<std::string, TensorInfo>& tensors) {
  constexpr size_t kMaxListed = 10;
  size_t differences = 0;
  std::vector<std::string> listed;
  const auto differs = [&](const std::string& name, const std::string& sentence) {
    if (++differences <= kMaxListed) listed.push_back(Quoted(name) + " " + sentence);
  };
  const auto shape = [](const std::vector<int64_t>& dims) {
    return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
  };

  const auto expected = ExpectedTensors(config);
  for (const auto& [name, dims] : expected) {
    const auto it = tensors.find(name);
    if (it == tensors.end()) {
      differs(name, "is missing");
    } else if (it->second.shape != dims) {
      differs(name,
              absl::StrCat("has shape ", shape(it->second.shape), ", expected ", shape(dims)));
    } else if (const DType dtype = it->second.dtype;
               dtype != DType::kFloat32 && dtype != DType::kFloat16 && dtype != DType::kBFloat16) {
      differs(name, absl::StrCat("has dtype ", std::string(Name(dtype)),
                                 ", expected float32, float16 or bfloat16"));
    }
  }
  constexpr std::string_view kKnownExtra = ".self_attn.rotary_emb.inv_freq";
  for (const auto& entry : tensors) {
    if (expected.contains(entry.first)) continue;
    if (std::string_view(entry.first).ends_with(kKnownExtra)) continue;
    differs(entry.first, "is not expected");
  }
  if (differences == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the tensors do not fit config.json, ",
                                                    differences,
                                                    " differences: ", absl::StrJoin(listed, "; ")));
}

}  // namespace eta
