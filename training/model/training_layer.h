// One layer forward and backward: columns of calls of a backend.
#pragma once

#include <cstdint>

#include "training/backend.h"
#include "training/model/layer_weights.h"
#include "training/model/model_spec.h"
#include "training/model/native_sparse_attention.h"

namespace eta::training {

// What a layer keeps from the forward to the backward pass.
struct KeptLayer {
  Tensor input;           // [R, D] residual
  Tensor attended;        // [R, HQ d]
  float* lse;             // [B, HQ, T]; null with native sparse attention, as is what follows
  std::byte* saved;       // AttentionForwardParams::saved
  KeptBranches branches;  // empty without native sparse attention
};

// Activations of a layer; where layers share them, Recompute() makes them anew. R rows.
struct LayerActivations {
  Tensor normed;           // [R, D]
  Tensor qkv;              // [R, ModelSpec::qkv_dim()]
  Tensor q;                // [R, HQ d] after RoPE, if any: of qkv, or behind the norms of heads
  Tensor k;                // [R, HKV d], likewise; [R, 2 HKV d] of two branches
  Tensor v;                // [R, HKV d], of qkv; [R, 2 HKV d] of two branches
  Tensor middle;           // [R, D] residual between attention and feed-forward
  Tensor ffn_normed;       // [R, D]
  Tensor gate_up;          // [R, 2F]
  Tensor activated;        // [R, F]
  float* inverse_rms;      // [R]
  float* q_inverse_rms;    // [R, HQ]; null without norms of heads
  float* k_inverse_rms;    // [R, HKV]
  float* ffn_inverse_rms;  // [R]
  float* tau;              // [R, HQ]; null without thresholds
  NativeSparseActivations native_sparse;
};

// What the backward pass of any layer works in.
struct LayerScratch {
  Tensor narrowed;       // [R, D] activations: the residual's gradient; empty if types are equal
  Tensor grad_attended;  // [R, HQ d]
  Tensor grad_qkv;       // [R, ModelSpec::qkv_dim()]
  float* grad_tau;       // [R, HQ]
  NativeSparseScratch native_sparse;
};

// What a layer's attention does in this pass.
struct LayerAttention {
  AttentionShape shape;
  AttentionGate gate;
  float* gate_sum;   // [B, HQ, T]; null: not wanted
  float* block_sum;  // [B, HB, T]; likewise
  RowGradient grad_gate_sum;
  RowGradient grad_block_sum;
};

class TrainingLayer {
 public:
  TrainingLayer(const ModelSpec& spec, LayerKind kind, TrainingBackend& backend,
                const LayerWeights& weights, const LayerGradients& gradients)
      : spec_(spec),
        kind_(kind),
        backend_(backend),
        weights_(weights),
        gradients_(gradients),
        native_sparse_(spec, backend, weights.native_sparse, gradients.native_sparse) {}

  // `residual` goes in and out; kept.input is written first.
  void Forward(const LayerAttention& attention, const Tensor& residual, const KeptLayer& kept,
               const LayerActivations& activations) const;
  // What Forward left in `activations`, from kept.input and kept.attended.
  void Recompute(const LayerAttention& attention, const KeptLayer& kept,
                 const LayerActivations& activations) const;
  // `grad_residual` [R, D] goes in and out; the parameters' gradients are added up. Uses up the
  // activations.
  void Backward(const LayerAttention& attention, const KeptLayer& kept,
                const LayerActivations& activations, const LayerScratch& scratch,
                const Tensor& grad_residual) const;

 private:
  AttentionForwardParams AttentionParams(const LayerAttention& attention, const KeptLayer& kept,
                                         const LayerActivations& activations) const;
  NormHeadsParams HeadNorms(const LayerActivations& activations) const;
  RopeParams Rotation(const LayerAttention& attention, const Tensor& q, const Tensor& k,
                      bool inverse) const;
  void Attend(const LayerAttention& attention, const KeptLayer& kept,
              const LayerActivations& activations) const;
  void AttendBackward(const LayerAttention& attention, const KeptLayer& kept,
                      const LayerActivations& activations, const LayerScratch& scratch) const;
  void Queries(const LayerAttention& attention, const Tensor& residual,
               const LayerActivations& activations) const;
  void FeedForward(const Tensor& residual, const LayerActivations& activations) const;
  void FeedForwardBackward(const LayerActivations& activations, const LayerScratch& scratch,
                           const Tensor& grad_residual) const;
  void AttentionBackward(const LayerAttention& attention, const KeptLayer& kept,
                         const LayerActivations& activations, const LayerScratch& scratch,
                         const Tensor& grad_residual) const;
  Tensor Narrow(const Tensor& grad_residual, const LayerScratch& scratch) const;

  ModelSpec spec_;
  LayerKind kind_;
  TrainingBackend& backend_;
  LayerWeights weights_;
  LayerGradients gradients_;
  NativeSparseAttention native_sparse_;
};

}  // namespace eta::training
