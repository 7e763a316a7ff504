// A layer's experts on a backend (eta-semantics.md, "Experts").
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "engine/model/model_config.h"
#include "engine/model/weights/weight_loader.h"
#include "kernels/backend.h"

namespace eta {

// F' is an expert's width.
struct LayerExperts {
  std::unique_ptr<Matrix> router;        // [E, D]; null: the layer has no experts
  std::unique_ptr<Buffer> router_bias;   // [E]; null: none
  std::unique_ptr<ExpertStack> gate_up;  // E of [2F', D]
  std::unique_ptr<Buffer> gate_up_bias;  // [E, 2F']; null: none
  std::unique_ptr<ExpertStack> down;     // E of [D, F']
  std::unique_ptr<Buffer> down_bias;     // [E, D]; null: none

  size_t router_bytes() const;
  size_t expert_bytes() const;  // of all experts
};

// `mlp`: what the names of the layer's tensors begin with, "model.layers.3.mlp.". Errors are the
// loader's.
void LoadExperts(const ModelConfig& config, const std::string& mlp, WeightLoader& load,
                 LayerExperts& experts);

}  // namespace eta
