// lint: untrusted-input, fuzz-covered
#include "engine/model/layer_kinds.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/files/input_file.h"

namespace eta {
namespace {

using Json = ConfigFields::Json;

// no_rope_layers has a 1 for each layer with RoPE and a 0 for each without. As in transformers it
// may go on past the last layer.
void ReadRotations(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  constexpr const char* kList = "no_rope_layers";
  constexpr int32_t kMostInterval = 1 << 20;
  if (family.unrotated_interval == 0) return;
  const Json* list = fields.Find(kList);
  if (list == nullptr) {
    const int32_t interval =
        fields.Int("no_rope_layer_interval", 1, kMostInterval, family.unrotated_interval);
    config.layers = LayersByInterval(config.num_layers, interval);
    return;
  }
  const auto num_layers = static_cast<size_t>(config.num_layers);
  if (!list->is_array() || list->size() < num_layers) {
    return fields.Invalid(kList, "must be a list with an entry for each layer");
  }
  std::vector<LayerKind> layers(num_layers);
  for (size_t i = 0; i < num_layers; ++i) {
    layers[i].rotates = fields.ToInt(kList, (*list)[i], 0, 1) == 1;
  }
  config.layers = Canonical(std::move(layers));
}

// Which layers have a window, as layer_types says. None: the file does not name the layers' kinds.
std::optional<std::vector<bool>> NamedWindows(ConfigFields& fields, int32_t num_layers) {
  const Json* types = fields.Find("layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array() || types->size() != static_cast<size_t>(num_layers)) {
    fields.Invalid("layer_types", "must be a list with one entry for each layer");
    return std::nullopt;
  }
  std::vector<bool> slides;
  slides.reserve(types->size());
  for (const Json& type : *types) {
    const std::string name = type.is_string() ? type.get<std::string>() : type.dump();
    slides.push_back(name == "sliding_attention");
    if (name != "sliding_attention" && name != "full_attention") {
      fields.Unsupported("layer_types", Quoted(name) + " is not supported");
    }
  }
  return slides;
}

// Which layers have the window where one is used and layer_types does not say.
std::vector<bool> WindowsByRule(ConfigFields& fields, const ModelFamily& family,
                                const ModelConfig& config) {
  std::vector<bool> slides(static_cast<size_t>(config.num_layers), true);
  int32_t first = 0;
  if (family.window == WindowRule::kPeriod) {
    const int32_t period = fields.Int("sliding_window_pattern", 1, 1 << 20, family.window_period);
    for (size_t i = 0; i < slides.size(); ++i) {
      slides[i] = (static_cast<int32_t>(i) + 1) % period != 0;
    }
    return slides;
  }
  if (family.window == WindowRule::kConfigured) {
    first = fields.Int("max_window_layers", 0, 1 << 20, family.max_window_layers);
  }
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const bool by_rope = family.window == WindowRule::kUnrotated;
    slides[static_cast<size_t>(i)] = by_rope ? !config.layer(i).rotates : i >= first;
  }
  return slides;
}

void SetWindows(const std::vector<bool>& slides, int32_t window, ModelConfig& config) {
  if (std::ranges::count(slides, true) == 0) return;
  config.sliding_window = window;
  config.layers.resize(slides.size());
  for (size_t i = 0; i < slides.size(); ++i) config.layers[i].window = slides[i] ? window : 0;
}

void ReadWindow(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  constexpr const char* kField = "sliding_window";
  const auto named = NamedWindows(fields, config.num_layers);
  // Where the file does not name the window, its family may have one; null says that there is none.
  bool used =
      fields.Find(kField) != nullptr || (family.sliding_window > 0 && !fields.Names(kField));
  std::vector<bool> slides = WindowsByRule(fields, family, config);
  switch (family.window) {
    case WindowRule::kNone:
      if (fields.Find(kField) != nullptr) fields.Unsupported(kField, "is not supported");
      used = false;
      break;
    case WindowRule::kAllLayers:
      break;
    case WindowRule::kConfigured:
    case WindowRule::kUnrotated: {
      const bool asked = fields.Bool("use_sliding_window");
      used = used && asked;
      slides = named.value_or(slides);
      break;
    }
    case WindowRule::kPeriod:
      slides = named.value_or(slides);
      if (!used && std::ranges::count(slides, true) > 0) {
        fields.Unsupported(kField, "null is not supported");
      }
      break;
    case WindowRule::kAllIfAsked:
      used = used && fields.Bool("use_sliding_window");
      break;
  }
  if (named && std::ranges::count(*named, true) > 0 && !used) {
    fields.Unsupported("layer_types", "'sliding_attention' is not supported without a window");
  }
  if (!used || std::ranges::count(slides, true) == 0) return;
  SetWindows(slides, fields.Int(kField, 1, ModelConfig::kMaxTrainedContext, family.sliding_window),
             config);
}

}  // namespace

std::vector<LayerKind> Canonical(std::vector<LayerKind> layers) {
  const bool plain = std::ranges::all_of(layers, [](LayerKind l) { return l == LayerKind(); });
  return plain ? std::vector<LayerKind>() : std::move(layers);
}

std::vector<LayerKind> LayersByInterval(int32_t num_layers, int32_t interval) {
  std::vector<LayerKind> layers(static_cast<size_t>(num_layers));
  for (int32_t i = 0; i < num_layers; ++i) {
    layers[static_cast<size_t>(i)].rotates = (i + 1) % interval != 0;
  }
  return Canonical(std::move(layers));
}

void ReadLayerKinds(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  ReadRotations(fields, family, config);
  ReadWindow(fields, family, config);
}

}  // namespace eta
