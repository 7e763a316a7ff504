#include "engine/model/weights/layer_experts.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace eta {

size_t LayerExperts::router_bytes() const {
  return (router ? router->bytes() : 0) + (router_bias ? router_bias->size() : 0);
}

size_t LayerExperts::expert_bytes() const {
  size_t bytes = 0;
  for (const auto* stack : {&gate_up, &down}) {
    if (*stack) bytes += (*stack)->bytes();
  }
  for (const auto* bias : {&gate_up_bias, &down_bias}) {
    if (*bias) bytes += (*bias)->size();
  }
  return bytes;
}

void LoadExperts(const ModelConfig& config, const std::string& mlp, WeightLoader& load,
                 LayerExperts& experts) {
  load.StoredMatrix(mlp + "gate.weight", experts.router);
  std::vector<std::unique_ptr<Matrix>> gate_up(static_cast<size_t>(config.num_experts));
  std::vector<std::unique_ptr<Matrix>> down(gate_up.size());
  std::vector<std::string> gate_up_biases;
  std::vector<std::string> down_biases;
  for (size_t e = 0; e < down.size(); ++e) {
    const std::string named = absl::StrCat(mlp, "experts.", e, ".");
    load.Matrix({named + "gate_proj.weight", named + "up_proj.weight"}, gate_up[e]);
    load.Matrix({named + "down_proj.weight"}, down[e]);
    gate_up_biases.insert(gate_up_biases.end(), {named + "gate_proj.bias", named + "up_proj.bias"});
    down_biases.push_back(named + "down_proj.bias");
  }
  load.Stack(std::move(gate_up), experts.gate_up);
  load.Stack(std::move(down), experts.down);
  if (!config.expert_biases) return;
  load.Floats({mlp + "gate.bias"}, experts.router_bias);
  load.Floats(gate_up_biases, experts.gate_up_bias);
  load.Floats(down_biases, experts.down_bias);
}

}  // namespace eta
