#include "training/model/initial_values.h"

#include <array>
#include <cmath>

#include "engine/base/random.h"

namespace eta::training {
namespace {

// FNV-1a.
uint64_t HashOf(std::string_view name) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return hash;
}

// Two normal numbers from four random words (Box and Muller).
std::array<double, 2> Normals(const std::array<uint32_t, 4>& words) {
  constexpr double kUnit = 1.0 / 18446744073709551616.0;  // 2^-64
  const auto uniform = [&](size_t i) {
    const uint64_t word = uint64_t{words[i]} << 32 | words[i + 1];
    return (static_cast<double>(word >> 11) * 2048.0 + 1024.0) * kUnit;
  };
  const double radius = std::sqrt(-2.0 * std::log(uniform(0)));
  const double angle = 6.283185307179586 * uniform(2);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

bool IsPredictor(std::string_view name) {
  return name.find(".self_attn.tau_proj.") != std::string_view::npos;
}

std::vector<float> InitialValues(const Parameter& parameter, const InitOptions& options,
                                 int32_t num_layers) {
  const std::string_view name = parameter.name;
  std::vector<float> values(static_cast<size_t>(parameter.count), 0.0f);
  if (IsPredictor(name)) {
    if (name.ends_with(".bias")) values.assign(values.size(), options.threshold_bias);
    return values;
  }
  if (name.ends_with(".bias")) return values;
  if (parameter.shape.size() == 1) {  // norms
    values.assign(values.size(), 1.0f);
    return values;
  }
  double deviation = options.deviation;
  if (name.find("_compressor.") != std::string_view::npos) {
    deviation = 1.0 / std::sqrt(static_cast<double>(parameter.shape.back()));
  } else if (name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight")) {
    deviation /= std::sqrt(2.0 * num_layers);
  }
  const uint64_t stream = HashOf(name);
  for (size_t i = 0; i < values.size(); i += 2) {
    const std::array<double, 2> pair = Normals(
        Philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32),
                static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
               {static_cast<uint32_t>(options.seed), static_cast<uint32_t>(options.seed >> 32)}));
    values[i] = static_cast<float>(deviation * pair[0]);
    if (i + 1 < values.size()) values[i + 1] = static_cast<float>(deviation * pair[1]);
  }
  return values;
}

}  // namespace eta::training
