// Native sparse attention of one layer (native_sparse_params.h), forward and backward: from queries
// and keys after RoPE to the output that the layer projects.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "training/backend.h"
#include "training/model/layer_weights.h"
#include "training/model/model_spec.h"

namespace eta::training {

struct KeptLayer;
struct LayerActivations;
struct LayerScratch;

// In the order of MixBranchesParams::branches.
enum Branch { kCompressionBranch, kSelectionBranch, kWindowBranch };

// What a layer keeps of its branches from the forward to the backward pass.
struct KeptBranches {
  std::array<Tensor, kBranches> out;        // [R, HQ d]
  std::array<float*, kBranches> lse;        // [B, HQ, T]
  std::array<std::byte*, kBranches> saved;  // AttentionForwardParams::saved
  uint64_t* selected;                       // [B, HKV, N, N], KeySelection::blocks
};

// In memory for the longest sequences; a batch has the first CompressedCount(T) rows of each of its
// sequences and KV heads.
struct CompressorActivations {
  Tensor windows;    // [B C HKV, kCompressedWindow d]
  Tensor gate_up;    // [B C HKV, 2 H]
  Tensor activated;  // [B C HKV, H]
  Tensor out;        // [B C HKV, d]: compressed keys after RoPE, or values
};

struct NativeSparseActivations {
  CompressorActivations keys;
  CompressorActivations values;
  Tensor gates;  // [R, 3 HQ]
};

struct NativeSparseScratch {
  std::array<Tensor, kBranches> grad_branches;  // [R, HQ d]
  Tensor grad_keys;                             // [B C HKV, d]
  Tensor grad_values;                           // [B C HKV, d]
};

class NativeSparseAttention {
 public:
  NativeSparseAttention(const ModelSpec& spec, TrainingBackend& backend,
                        const NativeSparseWeights& weights, const NativeSparseGradients& gradients)
      : spec_(spec), backend_(backend), weights_(weights), gradients_(gradients) {}

  // Compressed keys and values, and gates, of normed and qkv after RoPE.
  void Prepare(const AttentionShape& shape, const LayerActivations& activations) const;
  // The branches, and kept.attended of them.
  void Forward(const AttentionShape& shape, const KeptLayer& kept,
               const LayerActivations& activations) const;
  // Of scratch.grad_attended, which it uses up, scratch.grad_qkv after RoPE. What goes through the
  // gates to `normed` it leaves in activations.ffn_normed, which the feed-forward layer's backward
  // pass needs no more. Uses up the activations but `normed`.
  void Backward(const AttentionShape& shape, const KeptLayer& kept,
                const LayerActivations& activations, const LayerScratch& scratch) const;

 private:
  CompressedAttentionParams Compressed(const AttentionShape& shape, const KeptLayer& kept,
                                       const LayerActivations& activations) const;
  AttentionForwardParams Selected(const AttentionShape& shape, const KeptLayer& kept,
                                  const LayerActivations& activations) const;
  AttentionForwardParams Windowed(const AttentionShape& shape, const KeptLayer& kept,
                                  const LayerActivations& activations) const;
  MixBranchesParams Mix(const KeptLayer& kept, const LayerActivations& activations) const;
  RopeParams CompressedRotation(const AttentionShape& shape, const Tensor& keys,
                                bool inverse) const;
  void BranchesBackward(const AttentionShape& shape, const KeptLayer& kept,
                        const LayerActivations& activations, const LayerScratch& scratch) const;
  void GatesBackward(const LayerActivations& activations) const;

  ModelSpec spec_;
  TrainingBackend& backend_;
  NativeSparseWeights weights_;
  NativeSparseGradients gradients_;
};

}  // namespace eta::training
