// One layer's parameters and their gradients, by what the layer does with them.
#pragma once

#include <cstdint>

#include "training/model/parameters.h"

namespace eta::training {

// Null: the model has none of that kind.
struct LayerWeights {
  const float* attention_norm;    // [D]
  Tensor qkv;                     // [(HQ + 2 HKV) d, D]
  const float* qkv_bias;          // [(HQ + 2 HKV) d]
  const float* query_norm;        // [d]
  const float* key_norm;          // [d]
  const float* threshold_weight;  // [HQ, HQ d]
  const float* threshold_bias;    // [HQ]
  Tensor out_projection;          // [D, HQ d]
  const float* out_bias;          // [D]
  const float* ffn_norm;          // [D]
  Tensor gate_up;                 // [2F, D]
  Tensor down;                    // [D, F]
};

// The same places. Null: none, or frozen.
struct LayerGradients {
  float* attention_norm;
  float* qkv;
  float* qkv_bias;
  float* query_norm;
  float* key_norm;
  float* threshold_weight;
  float* threshold_bias;
  float* out_projection;
  float* out_bias;
  float* ffn_norm;
  float* gate_up;
  float* down;
};

LayerWeights WeightsOf(const ModelSpec& spec, const Parameters& parameters, int32_t layer);
LayerGradients GradientsOf(const Parameters& parameters, int32_t layer);

}  // namespace eta::training
