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

// Layers that are all alike have one form.
std::vector<LayerKind> Canonical(std::vector<LayerKind> layers) {
  const bool plain = std::ranges::all_of(layers, [](LayerKind l) { return l == LayerKind(); });
  return plain ? std::vector<LayerKind>() : std::move(layers);
}

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

// Whether layer_types names a layer with a window. None: the file does not name the layers' kinds.
std::optional<bool> NamesSlidingLayer(ConfigFields& fields, int32_t num_layers) {
  const Json* types = fields.Find("layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array() || types->size() != static_cast<size_t>(num_layers)) {
    fields.Invalid("layer_types", "must be a list with one entry for each layer");
    return std::nullopt;
  }
  bool slides = false;
  for (const Json& type : *types) {
    const std::string name = type.is_string() ? type.get<std::string>() : type.dump();
    slides |= name == "sliding_attention";
    if (name != "sliding_attention" && name != "full_attention") {
      fields.Unsupported("layer_types", Quoted(name) + " is not supported");
    }
  }
  return slides;
}

// Whether a layer has a window where layer_types does not say.
bool SlidesByDefault(ConfigFields& fields, const ModelFamily& family, const ModelConfig& config) {
  if (family.window == WindowRule::kUnrotated) {
    return std::ranges::any_of(config.layers, [](LayerKind layer) { return !layer.rotates; });
  }
  return fields.Int("max_window_layers", 0, 1 << 20, family.max_window_layers) < config.num_layers;
}

void ReadWindow(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  constexpr const char* kField = "sliding_window";
  const std::optional<bool> named = NamesSlidingLayer(fields, config.num_layers);
  // Where the file does not name the window, its family may have one; null says that there is none.
  bool used =
      fields.Find(kField) != nullptr || (family.sliding_window > 0 && !fields.Names(kField));
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
      const bool slides = SlidesByDefault(fields, family, config);
      used = used && asked && named.value_or(slides);
      break;
    }
    case WindowRule::kAllIfAsked:
      used = used && fields.Bool("use_sliding_window");
      break;
  }
  if (named.value_or(false) && !used) {
    fields.Unsupported("layer_types", "'sliding_attention' is not supported without a window");
  }
  if (!used) return;
  config.sliding_window =
      fields.Int(kField, 1, ModelConfig::kMaxTrainedContext, family.sliding_window);
}

}  // namespace

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
