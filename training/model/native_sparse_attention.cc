#include "training/model/native_sparse_attention.h"

#include "training/model/training_layer.h"

namespace eta::training {
namespace {

// Columns of qkv, or of its gradient (parameter_layout.cc has their order).
struct Projections {
  Projections(const ModelConfig& config, const Tensor& qkv)
      : q(qkv.Columns(0, config.query_dim())),
        k_selection(Part(config, qkv, 0)),
        k_window(Part(config, qkv, 1)),
        v_selection(Part(config, qkv, 2)),
        v_window(Part(config, qkv, 3)),
        k_compression(Part(config, qkv, 4)),
        v_compression(Part(config, qkv, 5)) {}

  static Tensor Part(const ModelConfig& config, const Tensor& qkv, int64_t part) {
    return qkv.Columns(config.query_dim() + part * config.kv_dim(), config.kv_dim());
  }

  Tensor q;
  Tensor k_selection;
  Tensor k_window;
  Tensor v_selection;
  Tensor v_window;
  Tensor k_compression;
  Tensor v_compression;
};

int64_t CompressedRows(const AttentionShape& shape) {
  return int64_t{shape.sequences} * CompressedCount(shape.length);
}

// A batch's rows of a compressor's [B C HKV, ...].
Tensor OfBatch(const AttentionShape& shape, const Tensor& tensor) {
  return tensor.Rows(0, CompressedRows(shape) * shape.num_kv_heads);
}

// [B C HKV, d] as [B C, HKV d].
Tensor ByWindow(const AttentionShape& shape, const Tensor& tensor) {
  const int64_t cols = int64_t{shape.num_kv_heads} * shape.head_dim;
  return {tensor.data, tensor.dtype, CompressedRows(shape), cols, cols};
}

GatherWindowsParams Gather(const AttentionShape& shape, const Tensor& x, const Tensor& windows) {
  return {shape.sequences, shape.length, shape.head_dim, x, OfBatch(shape, windows)};
}

// Sequences shorter than a window have no compressed keys.
void Compress(TrainingBackend& backend, const AttentionShape& shape, const Tensor& x,
              const CompressorWeights& weights, const CompressorActivations& a) {
  if (CompressedRows(shape) == 0) return;
  const Tensor gate_up = OfBatch(shape, a.gate_up);
  const Tensor activated = OfBatch(shape, a.activated);
  backend.GatherWindows(Gather(shape, x, a.windows));
  backend.MatMul({OfBatch(shape, a.windows), weights.gate_up, gate_up, false});
  backend.AddBias({gate_up, weights.bias});
  backend.SwiGlu({gate_up, activated});
  backend.MatMul({activated, weights.down, OfBatch(shape, a.out), false});
}

// An activation gives its place to its own gradient once the weight's gradient has read it.
void CompressBackward(TrainingBackend& backend, const AttentionShape& shape,
                      const CompressorWeights& weights, const CompressorGradients& gradients,
                      const CompressorActivations& a, const Tensor& grad_out,
                      const Tensor& grad_x) {
  const Tensor windows = OfBatch(shape, a.windows);
  if (CompressedRows(shape) > 0) {
    const Tensor grad = OfBatch(shape, grad_out);
    const Tensor gate_up = OfBatch(shape, a.gate_up);
    const Tensor activated = OfBatch(shape, a.activated);
    backend.MatMulWeight({grad, activated, gradients.down});
    backend.MatMulInput({grad, weights.down, activated});
    backend.SwiGluBackward({gate_up, activated, gate_up});
    backend.BiasBackward({gate_up, gradients.bias});
    backend.MatMulWeight({gate_up, windows, gradients.gate_up});
    backend.MatMulInput({gate_up, weights.gate_up, windows});
  }
  // Tokens that no window holds have a gradient too: 0.
  backend.GatherWindowsBackward({Gather(shape, grad_x, windows), windows, grad_x});
}

}  // namespace

CompressedAttentionParams NativeSparseAttention::Compressed(const AttentionShape& shape,
                                                            const KeptLayer& kept,
                                                            const LayerActivations& a) const {
  const KeptBranches& branches = kept.branches;
  return {shape,
          a.q,
          ByWindow(shape, a.native_sparse.keys.out),
          ByWindow(shape, a.native_sparse.values.out),
          branches.out[kCompressionBranch],
          branches.lse[kCompressionBranch],
          branches.selected};
}

AttentionForwardParams NativeSparseAttention::Selected(const AttentionShape& shape,
                                                       const KeptLayer& kept,
                                                       const LayerActivations& a) const {
  const Projections p(spec_.config, a.qkv);
  const KeptBranches& branches = kept.branches;
  return {.shape = shape,
          .q = p.q,
          .k = p.k_selection,
          .v = p.v_selection,
          .out = branches.out[kSelectionBranch],
          .lse = branches.lse[kSelectionBranch],
          .saved = branches.saved[kSelectionBranch],
          .keys = {.blocks = branches.selected}};
}

AttentionForwardParams NativeSparseAttention::Windowed(const AttentionShape& shape,
                                                       const KeptLayer& kept,
                                                       const LayerActivations& a) const {
  const Projections p(spec_.config, a.qkv);
  const KeptBranches& branches = kept.branches;
  return {.shape = shape,
          .q = p.q,
          .k = p.k_window,
          .v = p.v_window,
          .out = branches.out[kWindowBranch],
          .lse = branches.lse[kWindowBranch],
          .saved = branches.saved[kWindowBranch],
          .keys = {.window = kSlidingWindow}};
}

MixBranchesParams NativeSparseAttention::Mix(const KeptLayer& kept,
                                             const LayerActivations& a) const {
  return {spec_.config.num_query_heads, a.native_sparse.gates, kept.branches.out, kept.attended};
}

// By the middle of the window.
RopeParams NativeSparseAttention::CompressedRotation(const AttentionShape& shape,
                                                     const Tensor& keys, bool inverse) const {
  return {.k = ByWindow(shape, keys),
          .head_dim = shape.head_dim,
          .length = CompressedCount(shape.length),
          .theta = static_cast<double>(spec_.config.rope_theta),
          .scaling = spec_.config.rope_scaling,
          .inverse = inverse,
          .first = kCompressedWindow / 2,
          .stride = kCompressedStride};
}

void NativeSparseAttention::Prepare(const AttentionShape& shape, const LayerActivations& a) const {
  const Projections p(spec_.config, a.qkv);
  const NativeSparseActivations& own = a.native_sparse;
  Compress(backend_, shape, p.k_compression, weights_.keys, own.keys);
  Compress(backend_, shape, p.v_compression, weights_.values, own.values);
  if (CompressedRows(shape) > 0) backend_.Rope(CompressedRotation(shape, own.keys.out, false));
  backend_.MatMul({a.normed, weights_.gates, own.gates, false});
  backend_.AddBias({own.gates, weights_.gate_bias});
}

void NativeSparseAttention::Forward(const AttentionShape& shape, const KeptLayer& kept,
                                    const LayerActivations& a) const {
  backend_.CompressedAttention(Compressed(shape, kept, a));
  backend_.Attention(Selected(shape, kept, a));
  backend_.Attention(Windowed(shape, kept, a));
  backend_.MixBranches(Mix(kept, a));
}

// The gradient of q is the sum over the branches; once they are mixed, grad_attended has room for a
// branch's.
void NativeSparseAttention::BranchesBackward(const AttentionShape& shape, const KeptLayer& kept,
                                             const LayerActivations& a,
                                             const LayerScratch& scratch) const {
  const Projections grad(spec_.config, scratch.grad_qkv);
  const NativeSparseScratch& own = scratch.native_sparse;
  backend_.AttentionBackward({.forward = Selected(shape, kept, a),
                              .grad_out = own.grad_branches[kSelectionBranch],
                              .grad_q = grad.q,
                              .grad_k = grad.k_selection,
                              .grad_v = grad.v_selection});
  backend_.AttentionBackward({.forward = Windowed(shape, kept, a),
                              .grad_out = own.grad_branches[kWindowBranch],
                              .grad_q = scratch.grad_attended,
                              .grad_k = grad.k_window,
                              .grad_v = grad.v_window});
  backend_.Add({scratch.grad_attended, grad.q});
  backend_.CompressedAttentionBackward(
      {Compressed(shape, kept, a), own.grad_branches[kCompressionBranch], scratch.grad_attended,
       ByWindow(shape, own.grad_keys), ByWindow(shape, own.grad_values)});
  backend_.Add({scratch.grad_attended, grad.q});
  if (CompressedRows(shape) > 0) backend_.Rope(CompressedRotation(shape, own.grad_keys, true));
}

void NativeSparseAttention::GatesBackward(const LayerActivations& a) const {
  const Tensor& grad_gates = a.native_sparse.gates;
  backend_.BiasBackward({grad_gates, gradients_.gate_bias});
  backend_.MatMulWeight({grad_gates, a.normed, gradients_.gates});
  backend_.MatMulInput({grad_gates, weights_.gates, a.ffn_normed});
}

void NativeSparseAttention::Backward(const AttentionShape& shape, const KeptLayer& kept,
                                     const LayerActivations& a, const LayerScratch& scratch) const {
  const Projections grad(spec_.config, scratch.grad_qkv);
  const NativeSparseActivations& own = a.native_sparse;
  backend_.MixBranchesBackward(
      {Mix(kept, a), scratch.grad_attended, own.gates, scratch.native_sparse.grad_branches});
  BranchesBackward(shape, kept, a, scratch);
  CompressBackward(backend_, shape, weights_.keys, gradients_.keys, own.keys,
                   scratch.native_sparse.grad_keys, grad.k_compression);
  CompressBackward(backend_, shape, weights_.values, gradients_.values, own.values,
                   scratch.native_sparse.grad_values, grad.v_compression);
  GatesBackward(a);
}

}  // namespace eta::training
