// The memory of a model's passes: allocated once for the largest batch, then cut to each batch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "training/backend.h"
#include "training/model/model_spec.h"
#include "training/model/training_layer.h"

namespace eta::training {

struct ActivationLimits {
  int32_t sequences = 1;
  int32_t length = 0;
  bool recompute = true;
  bool backward = true;

  int64_t rows() const { return int64_t{sequences} * length; }
};

class Activations {
 public:
  Activations(const ModelSpec& spec, TrainingBackend& backend) : spec_(spec), backend_(backend) {}

  absl::Status Allocate(const ActivationLimits& limits, size_t saved_bytes);

  // Of `layer`, in the first `rows` rows.
  KeptLayer Kept(int32_t layer, int64_t rows) const;
  LayerActivations Layer(int32_t layer, int64_t rows) const;
  LayerScratch Scratch(int64_t rows) const;

  Tensor residual;                    // [R, D]
  Tensor hidden;                      // [R, D], after the last norm
  Tensor grad_residual;               // [R, D]; empty without a backward pass
  Tensor grad_hidden;                 // [R, D]; likewise
  float* last_inverse_rms = nullptr;  // [R]
  float* gate_sum = nullptr;          // [B, HQ, T]; null without a gate
  float* block_sum = nullptr;         // [B, HQ, T]
  float* position_weights = nullptr;  // [4, T]: densities of gates and blocks, then gradients
  float* gate_density = nullptr;      // [L, HQ]
  float* block_density = nullptr;     // [L, HQ]
  float* cross_entropy = nullptr;     // [R]
  float* divergence = nullptr;        // [R]
  float* hit = nullptr;               // [R]

 private:
  Tensor Make(int64_t cols, DType dtype) { return MakeRows(limits_.rows(), cols, dtype); }
  Tensor MakeRows(int64_t rows, int64_t cols, DType dtype);
  float* Floats(int64_t count);
  std::byte* Bytes(size_t bytes);
  int64_t CompressedRows() const;  // B C HKV
  KeptBranches MakeBranches(size_t saved_bytes);
  CompressorActivations MakeCompressor();
  void MakeKept(size_t saved_bytes);
  void MakeLayer();

  ModelSpec spec_;
  TrainingBackend& backend_;
  absl::Status status_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  ActivationLimits limits_;
  std::vector<KeptLayer> kept_;           // [L], or one that all share, without a backward pass
  std::vector<LayerActivations> layers_;  // [L], or one that all share
  LayerScratch scratch_{};
};

}  // namespace eta::training
