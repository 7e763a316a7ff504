#include "training/model/training_layer.h"

namespace eta::training {

AttentionForwardParams TrainingLayer::AttentionParams(const LayerAttention& attention,
                                                      const KeptLayer& kept,
                                                      const LayerActivations& a) const {
  return {
      attention.shape,    attention.gate,      a.q,       a.k, a.v, a.tau, kept.attended, kept.lse,
      attention.gate_sum, attention.block_sum, kept.saved};
}

NormHeadsParams TrainingLayer::HeadNorms(const LayerActivations& a) const {
  const int64_t q_cols = spec_.config.query_dim();
  const int64_t kv_cols = spec_.config.kv_dim();
  return {a.qkv.Columns(0, q_cols),
          a.qkv.Columns(q_cols, kv_cols),
          weights_.query_norm,
          weights_.key_norm,
          spec_.config.head_dim,
          spec_.config.norm_eps,
          a.q,
          a.k,
          a.q_inverse_rms,
          a.k_inverse_rms};
}

RopeParams TrainingLayer::Rotation(const LayerAttention& attention, const Tensor& q,
                                   const Tensor& k, bool inverse) const {
  const ModelConfig& c = spec_.config;
  return {q,
          k,
          c.head_dim,
          attention.shape.length,
          static_cast<double>(c.rope_theta),
          c.rope_scaling,
          inverse};
}

// Up to attention, from the layer's input.
void TrainingLayer::Queries(const LayerAttention& attention, const Tensor& residual,
                            const LayerActivations& a) const {
  backend_.RmsNorm(
      {residual, weights_.attention_norm, spec_.config.norm_eps, a.normed, a.inverse_rms});
  backend_.MatMul({a.normed, weights_.qkv, a.qkv, false});
  if (weights_.qkv_bias != nullptr) backend_.AddBias({a.qkv, weights_.qkv_bias});
  if (weights_.query_norm != nullptr) backend_.NormHeads(HeadNorms(a));
  if (kind_.rotates) backend_.Rope(Rotation(attention, a.q, a.k, false));
  if (spec_.has_thresholds()) {
    backend_.PredictThresholds({spec_.config.num_query_heads, a.q, weights_.threshold_weight,
                                weights_.threshold_bias, a.tau});
  }
  if (spec_.is_native_sparse()) native_sparse_.Prepare(attention.shape, a);
}

void TrainingLayer::Attend(const LayerAttention& attention, const KeptLayer& kept,
                           const LayerActivations& a) const {
  if (spec_.is_native_sparse()) {
    native_sparse_.Forward(attention.shape, kept, a);
  } else {
    backend_.Attention(AttentionParams(attention, kept, a));
  }
}

// From the residual after attention up to what the last product reads.
void TrainingLayer::FeedForward(const Tensor& residual, const LayerActivations& a) const {
  backend_.RmsNorm(
      {residual, weights_.ffn_norm, spec_.config.norm_eps, a.ffn_normed, a.ffn_inverse_rms});
  backend_.MatMul({a.ffn_normed, weights_.gate_up, a.gate_up, false});
  backend_.SwiGlu({a.gate_up, a.activated});
}

void TrainingLayer::Forward(const LayerAttention& attention, const Tensor& residual,
                            const KeptLayer& kept, const LayerActivations& a) const {
  if (!kept.input.empty()) backend_.Convert(residual, kept.input);
  Queries(attention, residual, a);
  Attend(attention, kept, a);
  backend_.MatMul({kept.attended, weights_.out_projection, residual, true});
  if (weights_.out_bias != nullptr) backend_.AddBias({residual, weights_.out_bias});
  if (!a.middle.empty()) backend_.Convert(residual, a.middle);
  FeedForward(residual, a);
  backend_.MatMul({a.activated, weights_.down, residual, true});
}

void TrainingLayer::Recompute(const LayerAttention& attention, const KeptLayer& kept,
                              const LayerActivations& a) const {
  Queries(attention, kept.input, a);
  backend_.Convert(kept.input, a.middle);
  backend_.MatMul({kept.attended, weights_.out_projection, a.middle, true});
  if (weights_.out_bias != nullptr) backend_.AddBias({a.middle, weights_.out_bias});
  FeedForward(a.middle, a);
}

// The gradient of the residual in the type of products.
Tensor TrainingLayer::Narrow(const Tensor& grad_residual, const LayerScratch& scratch) const {
  if (scratch.narrowed.empty()) return grad_residual;
  backend_.Convert(grad_residual, scratch.narrowed);
  return scratch.narrowed;
}

// An activation gives its place to its own gradient once the weight's gradient has read it.
void TrainingLayer::FeedForwardBackward(const LayerActivations& a, const LayerScratch& scratch,
                                        const Tensor& grad_residual) const {
  const Tensor grad = Narrow(grad_residual, scratch);
  backend_.MatMulWeight({grad, a.activated, gradients_.down});
  backend_.MatMulInput({grad, weights_.down, a.activated});
  backend_.SwiGluBackward({a.gate_up, a.activated, a.gate_up});
  backend_.MatMulWeight({a.gate_up, a.ffn_normed, gradients_.gate_up});
  backend_.MatMulInput({a.gate_up, weights_.gate_up, a.ffn_normed});
  backend_.RmsNormBackward({a.middle, weights_.ffn_norm, a.ffn_inverse_rms, a.ffn_normed,
                            grad_residual, gradients_.ffn_norm});
}

// From scratch.grad_attended to scratch.grad_qkv after RoPE.
void TrainingLayer::AttendBackward(const LayerAttention& attention, const KeptLayer& kept,
                                   const LayerActivations& a, const LayerScratch& scratch) const {
  if (spec_.is_native_sparse()) return native_sparse_.Backward(attention.shape, kept, a, scratch);
  const int64_t q_cols = spec_.config.query_dim();
  const int64_t kv_cols = spec_.config.kv_dim();
  backend_.AttentionBackward(
      {AttentionParams(attention, kept, a), scratch.grad_attended, attention.grad_gate_sum,
       attention.grad_block_sum, scratch.grad_qkv.Columns(0, q_cols),
       scratch.grad_qkv.Columns(q_cols, kv_cols),
       scratch.grad_qkv.Columns(q_cols + kv_cols, kv_cols), scratch.grad_tau});
}

void TrainingLayer::AttentionBackward(const LayerAttention& attention, const KeptLayer& kept,
                                      const LayerActivations& a, const LayerScratch& scratch,
                                      const Tensor& grad_residual) const {
  const Tensor grad_q = scratch.grad_qkv.Columns(0, a.q.cols);
  const Tensor grad_k = scratch.grad_qkv.Columns(a.q.cols, a.k.cols);

  const Tensor grad = Narrow(grad_residual, scratch);
  if (weights_.out_bias != nullptr) backend_.BiasBackward({grad, gradients_.out_bias});
  backend_.MatMulWeight({grad, kept.attended, gradients_.out_projection});
  backend_.MatMulInput({grad, weights_.out_projection, scratch.grad_attended});
  AttendBackward(attention, kept, a, scratch);
  if (spec_.has_thresholds()) {
    backend_.ThresholdsBackward({spec_.config.num_query_heads, a.q, weights_.threshold_weight,
                                 scratch.grad_tau, grad_q, gradients_.threshold_weight,
                                 gradients_.threshold_bias});
  }
  if (kind_.rotates) backend_.Rope(Rotation(attention, grad_q, grad_k, true));
  if (weights_.query_norm != nullptr) {
    backend_.NormHeadsBackward(
        {HeadNorms(a), grad_q, grad_k, gradients_.query_norm, gradients_.key_norm});
  }
  if (weights_.qkv_bias != nullptr) {
    backend_.BiasBackward({scratch.grad_qkv, gradients_.qkv_bias});
  }
  backend_.MatMulWeight({scratch.grad_qkv, a.normed, gradients_.qkv});
  backend_.MatMulInput({scratch.grad_qkv, weights_.qkv, a.normed});
  // What came through the gates of branches.
  if (spec_.is_native_sparse()) backend_.Add({a.ffn_normed, a.normed});
  backend_.RmsNormBackward({kept.input, weights_.attention_norm, a.inverse_rms, a.normed,
                            grad_residual, gradients_.attention_norm});
}

void TrainingLayer::Backward(const LayerAttention& attention, const KeptLayer& kept,
                             const LayerActivations& activations, const LayerScratch& scratch,
                             const Tensor& grad_residual) const {
  FeedForwardBackward(activations, scratch, grad_residual);
  AttentionBackward(attention, kept, activations, scratch, grad_residual);
}

}  // namespace eta::training
