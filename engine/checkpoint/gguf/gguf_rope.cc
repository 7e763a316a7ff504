// lint: untrusted-input, fuzz-covered
#include "engine/checkpoint/gguf/gguf_rope.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/files/input_file.h"

namespace eta {
namespace {

constexpr double kTurn = 2.0 * 3.14159265358979323846;
constexpr double kTolerance = 1e-4;  // relative: the file has float32 of another program's double
constexpr int64_t kMaxContext = int64_t{1} << 24;

double Wavelength(double theta, int64_t head_dim, size_t pair) {
  // cannot wrap: a floating-point number
  return kTurn * std::pow(theta, 2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
}

// As Hugging Face and the conversion to GGUF compute it.
double Llama3Factor(const Llama3Scaling& scaling, double wavelength) {
  const auto context = static_cast<double>(scaling.original_context);
  if (wavelength < context / scaling.high_freq_factor) return 1.0;
  if (wavelength > context / scaling.low_freq_factor) return scaling.factor;
  const double smooth = (context / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return 1.0 / ((1.0 - smooth) / scaling.factor + smooth);
}

bool Explains(const Llama3Scaling& scaling, const std::vector<float>& factors, double theta,
              int64_t head_dim) {
  for (size_t i = 0; i < factors.size(); ++i) {
    const double expected = Llama3Factor(scaling, Wavelength(theta, head_dim, i));
    // The condition is written so that NaN fails.
    // cannot wrap: floating-point numbers
    if (!(std::abs(factors[i] - expected) <= kTolerance * expected)) return false;
  }
  return true;
}

// Between the two wavelengths the inverse of a factor is a line in the inverse of the wavelength.
// The low factor may be taken as 1: the formula does not change if it, the high one and the context
// are divided by the same number.
std::optional<Llama3Scaling> FitLine(const std::vector<float>& factors, double theta,
                                     int64_t head_dim) {
  const double factor = factors.back();
  std::vector<size_t> between;
  for (size_t i = 0; i < factors.size(); ++i) {
    // cannot wrap: floating-point numbers
    if (factors[i] > 1.0 + kTolerance && factors[i] < factor * (1.0 - kTolerance)) {
      between.push_back(i);
    }
  }
  if (between.size() < 2) return std::nullopt;
  const auto smooth_at = [&](size_t i) {
    return (1.0 / factors[i] - 1.0 / factor) / (1.0 - 1.0 / factor);
  };
  const size_t first = between.front();
  const size_t last = between.back();
  const double x0 = 1.0 / Wavelength(theta, head_dim, first);
  const double x1 = 1.0 / Wavelength(theta, head_dim, last);
  const double slope = (smooth_at(first) - smooth_at(last)) / (x0 - x1);
  // cannot wrap: floating-point numbers
  const double offset = slope * x0 - smooth_at(first);
  if (!(slope > 0.0 && offset > 0.0)) return std::nullopt;
  const double context = slope / offset;
  if (!(context >= 1.0 && context <= static_cast<double>(kMaxContext))) return std::nullopt;
  Llama3Scaling scaling;
  scaling.factor = factor;
  scaling.original_context = std::llround(context);
  // Such factors are written as quarters at the finest.
  // cannot wrap: floating-point numbers
  scaling.high_freq_factor = std::round((1.0 + 1.0 / offset) * 4.0) / 4.0;
  if (!(scaling.high_freq_factor > 1.0)) return std::nullopt;
  return scaling;
}

void WriteLlama3(GgufMetadata& metadata, double theta, int64_t head_dim,
                 const std::vector<float>& factors, JsonWriter& json) {
  // cannot wrap: twice the number of floats in memory
  if (static_cast<int64_t>(factors.size()) * 2 != head_dim) {
    return metadata.Fail(kGgufRopeFactors, "must have one number for each pair of a head");
  }
  if (std::all_of(factors.begin(), factors.end(), [](float f) { return f == 1.0f; })) return;
  const auto scaling = FindLlama3Scaling(factors, theta, head_dim);
  if (!scaling) {
    return metadata.FailUnsupported(kGgufRopeFactors,
                                    "holds other factors than LLaMA 3's formula gives");
  }
  json.Key("rope_scaling").BeginObject();
  json.Key("factor").Value(scaling->factor);
  json.Key("high_freq_factor").Value(scaling->high_freq_factor);
  json.Key("low_freq_factor").Value(scaling->low_freq_factor);
  json.Key("original_max_position_embeddings").Value(scaling->original_context);
  json.Key("rope_type").Value("llama3");
  json.End();
}

struct ScalingKeys {
  std::optional<std::string> type;
  std::optional<double> factor;
  std::optional<int64_t> original_context;
  std::optional<double> beta_fast;
  std::optional<double> beta_slow;
};

ScalingKeys ReadScaling(GgufMetadata& metadata, const std::string& prefix) {
  const std::string scaling = prefix + "rope.scaling.";
  ScalingKeys keys;
  keys.type = metadata.OptionalText(prefix + gguf_key::kScalingType);
  keys.factor = metadata.OptionalReal(prefix + gguf_key::kScalingFactor);
  // Older files.
  if (!keys.factor) keys.factor = metadata.OptionalReal(prefix + "rope.scale_linear");
  keys.original_context =
      metadata.OptionalInteger(prefix + gguf_key::kScalingContext, 1, kMaxContext);
  keys.beta_fast = metadata.OptionalReal(prefix + gguf_key::kYarnBetaFast);
  keys.beta_slow = metadata.OptionalReal(prefix + gguf_key::kYarnBetaSlow);
  metadata.OptionalBool(scaling + "finetuned");
  for (const char* name : {"attn_factor", "yarn_attn_factor", "yarn_ext_factor"}) {
    const auto value = metadata.OptionalReal(scaling + name);
    if (value && *value != 1.0) {
      metadata.FailUnsupported(scaling + name, "must be 1, which others are not supported");
    }
  }
  return keys;
}

}  // namespace

std::optional<Llama3Scaling> FindLlama3Scaling(const std::vector<float>& factors, double rope_theta,
                                               int64_t head_dim) {
  if (factors.empty() || !(rope_theta >= 1.0)) return std::nullopt;
  // The files of LLaMA 3.1 to 3.3.
  const Llama3Scaling usual = {.factor = factors.back()};
  if (usual.factor > 1.0 && Explains(usual, factors, rope_theta, head_dim)) return usual;
  const auto fitted = FitLine(factors, rope_theta, head_dim);
  if (fitted && Explains(*fitted, factors, rope_theta, head_dim)) return fitted;
  return std::nullopt;
}

void WriteRope(GgufMetadata& metadata, const std::string& prefix, const GgufRope& rope,
               JsonWriter& json) {
  const std::vector<float>& factors = rope.factors;
  const double theta = metadata.OptionalReal(prefix + gguf_key::kRopeTheta).value_or(10000.0);
  json.Key("rope_theta").Value(theta);
  const ScalingKeys keys = ReadScaling(metadata, prefix);
  const std::string type_key = prefix + gguf_key::kScalingType;
  // Zero is what some conversions write for none.
  const double factor = keys.factor.value_or(0.0) == 0.0 ? 1.0 : *keys.factor;
  const std::string type = keys.type.value_or(factor == 1.0 ? "none" : "linear");
  if (type != "none" && type != "linear" && type != "yarn") {
    metadata.FailUnsupported(type_key, Quoted(type) + " is not supported, only linear and yarn");
    return;
  }
  const bool scales = type == "yarn" || (type == "linear" && factor != 1.0);
  if (!factors.empty()) {
    if (scales) {
      metadata.FailUnsupported(type_key, "is not supported together with rope_freqs.weight");
    }
    WriteLlama3(metadata, theta, rope.head_dim, factors, json);
    return;
  }
  if (!scales && !rope.names_scaling) return;
  json.Key("rope_scaling").BeginObject();
  if (scales) json.Key("factor").Value(factor);
  if (type == "yarn") {
    if (keys.original_context) {
      json.Key("original_max_position_embeddings").Value(*keys.original_context);
    }
    if (keys.beta_fast) json.Key("beta_fast").Value(*keys.beta_fast);
    if (keys.beta_slow) json.Key("beta_slow").Value(*keys.beta_slow);
    if (rope.names_scaling) json.Key("truncate").Value(false);
  }
  json.Key("rope_type").Value(scales ? type : "default");
  json.End();
}

}  // namespace eta
