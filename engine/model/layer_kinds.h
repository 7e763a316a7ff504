// What the layers of a model differ in, as config.json says it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/config_fields.h"
#include "engine/model/model_config.h"
#include "engine/model/model_family.h"

namespace eta {

// Layers of which every `interval`-th has no RoPE: layer interval - 1, 2 * interval - 1, ... As
// ModelConfig::layers. REQUIRES: interval >= 1.
std::vector<LayerKind> LayersByInterval(int32_t num_layers, int32_t interval);

// Layers that are all alike have one form: none is listed.
std::vector<LayerKind> Canonical(std::vector<LayerKind> layers);

// Sets `config`'s layers and sliding_window, by its num_layers and the fields that `family` has:
// no_rope_layers, or else no_rope_layer_interval; sliding_window, use_sliding_window, layer_types,
// max_window_layers and sliding_window_pattern. Errors go to `fields`.
void ReadLayerKinds(ConfigFields& fields, const ModelFamily& family, ModelConfig& config);

}  // namespace eta
