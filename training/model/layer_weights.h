// One layer's parameters and their gradients, by what the layer does with them.
#pragma once

#include <cstdint>

#include "training/model/parameters.h"

namespace eta::training {

// Of the map of a window to a compressed key, or value. H hidden.
struct CompressorWeights {
  Tensor gate_up;     // [2 H, kCompressedWindow d]
  const float* bias;  // [2 H]; it holds the encoding of places in a window
  Tensor down;        // [d, H]
};

// What native sparse attention has beside queries, keys, values and output.
struct NativeSparseWeights {
  CompressorWeights keys;
  CompressorWeights values;
  Tensor gates;            // [3 HQ, D]
  const float* gate_bias;  // [3 HQ]
};

// Null: the model has none of that kind.
struct LayerWeights {
  const float* attention_norm;    // [D]
  Tensor qkv;                     // [ModelSpec::qkv_dim(), D]
  const float* qkv_bias;          // [(HQ + 2 HKV) d]
  const float* query_norm;        // [d]
  const float* key_norm;          // [d]
  const float* threshold_weight;  // [HQ, HQ d]
  const float* threshold_bias;    // [HQ]
  NativeSparseWeights native_sparse;
  Tensor out_projection;  // [D, HQ d]
  const float* out_bias;  // [D]
  const float* ffn_norm;  // [D]
  Tensor gate_up;         // [2F, D]
  Tensor down;            // [D, F]
};

// The same places. Null: none, or frozen.
struct CompressorGradients {
  float* gate_up;
  float* bias;
  float* down;
};

struct NativeSparseGradients {
  CompressorGradients keys;
  CompressorGradients values;
  float* gates;
  float* gate_bias;
};

struct LayerGradients {
  float* attention_norm;
  float* qkv;
  float* qkv_bias;
  float* query_norm;
  float* key_norm;
  float* threshold_weight;
  float* threshold_bias;
  NativeSparseGradients native_sparse;
  float* out_projection;
  float* out_bias;
  float* ffn_norm;
  float* gate_up;
  float* down;
};

LayerWeights WeightsOf(const ModelSpec& spec, const Parameters& parameters, int32_t layer);
LayerGradients GradientsOf(const Parameters& parameters, int32_t layer);

}  // namespace eta::training
