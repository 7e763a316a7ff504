#include "training/model/activations.h"

#include <algorithm>
#include <utility>

namespace eta::training {

std::byte* Activations::Bytes(size_t bytes) {
  if (!status_.ok() || bytes == 0) return nullptr;
  auto buffer = backend_.Allocate(bytes);
  if (!buffer.ok()) {
    status_ = buffer.status();
    return nullptr;
  }
  buffers_.push_back(*std::move(buffer));
  return buffers_.back()->data();
}

float* Activations::Floats(int64_t count) {
  return reinterpret_cast<float*>(Bytes(static_cast<size_t>(count) * sizeof(float)));
}

Tensor Activations::MakeRows(int64_t rows, int64_t cols, DType dtype) {
  return {Bytes(static_cast<size_t>(rows * cols) * SizeOf(dtype)), dtype, rows, cols, cols};
}

int64_t Activations::CompressedRows() const {
  return int64_t{limits_.sequences} * CompressedCount(limits_.length) * spec_.config.num_kv_heads;
}

KeptBranches Activations::MakeBranches(size_t saved_bytes) {
  const ModelConfig& c = spec_.config;
  KeptBranches kept{};
  for (size_t i = 0; i < kBranches; ++i) {
    kept.out[i] = Make(c.query_dim(), backend_.activation_dtype());
    kept.lse[i] = Floats(limits_.rows() * c.num_query_heads);
    if (limits_.backward && i != kCompressionBranch) kept.saved[i] = Bytes(saved_bytes);
  }
  const int64_t blocks = KeySelection::Blocks(limits_.length);
  const int64_t masks = int64_t{limits_.sequences} * c.num_kv_heads * blocks * blocks;
  kept.selected = reinterpret_cast<uint64_t*>(Bytes(static_cast<size_t>(masks) * sizeof(uint64_t)));
  return kept;
}

CompressorActivations Activations::MakeCompressor() {
  const int64_t rows = CompressedRows();
  const int64_t head_dim = spec_.config.head_dim;
  const int64_t width = spec_.compressor_dim();
  const DType dtype = backend_.activation_dtype();
  return {.windows = MakeRows(rows, kCompressedWindow * head_dim, dtype),
          .gate_up = MakeRows(rows, 2 * width, dtype),
          .activated = MakeRows(rows, width, dtype),
          .out = MakeRows(rows, head_dim, dtype)};
}

void Activations::MakeKept(size_t saved_bytes) {
  const ModelConfig& c = spec_.config;
  KeptLayer kept{};
  if (limits_.backward) kept.input = Make(c.model_dim, backend_.residual_dtype());
  kept.attended = Make(c.query_dim(), backend_.activation_dtype());
  if (spec_.is_native_sparse()) {
    kept.branches = MakeBranches(saved_bytes);
  } else {
    kept.lse = Floats(limits_.rows() * c.num_query_heads);
    if (limits_.backward) kept.saved = Bytes(saved_bytes);
  }
  kept_.push_back(kept);
}

void Activations::MakeLayer() {
  const ModelConfig& c = spec_.config;
  const DType dtype = backend_.activation_dtype();
  const int64_t rows = limits_.rows();
  const int64_t q_cols = c.query_dim();
  const int64_t kv_cols = (spec_.is_native_sparse() ? 2 : 1) * c.kv_dim();
  LayerActivations a{};
  a.normed = Make(c.model_dim, dtype);
  a.qkv = Make(spec_.qkv_dim(), dtype);
  a.q = c.head_norms ? Make(q_cols, dtype) : a.qkv.Columns(0, q_cols);
  a.k = c.head_norms ? Make(kv_cols, dtype) : a.qkv.Columns(q_cols, kv_cols);
  a.v = a.qkv.Columns(q_cols + kv_cols, kv_cols);
  if (limits_.backward) a.middle = Make(c.model_dim, backend_.residual_dtype());
  a.ffn_normed = Make(c.model_dim, dtype);
  a.gate_up = Make(2 * int64_t{c.ffn_dim}, dtype);
  a.activated = Make(c.ffn_dim, dtype);
  a.inverse_rms = Floats(rows);
  if (c.head_norms) {
    a.q_inverse_rms = Floats(rows * c.num_query_heads);
    a.k_inverse_rms = Floats(rows * c.num_kv_heads);
  }
  a.ffn_inverse_rms = Floats(rows);
  if (spec_.has_thresholds()) a.tau = Floats(rows * c.num_query_heads);
  if (spec_.is_native_sparse()) {
    a.native_sparse = {.keys = MakeCompressor(),
                       .values = MakeCompressor(),
                       .gates = Make(int64_t{kBranches} * c.num_query_heads, dtype)};
  }
  layers_.push_back(a);
}

absl::Status Activations::Allocate(const ActivationLimits& limits, size_t saved_bytes) {
  limits_ = limits;
  const ModelConfig& c = spec_.config;
  const DType dtype = backend_.activation_dtype();
  const DType wide = backend_.residual_dtype();
  const int64_t rows = limits.rows();
  residual = Make(c.model_dim, wide);
  hidden = Make(c.model_dim, dtype);
  last_inverse_rms = Floats(rows);
  cross_entropy = Floats(rows);
  divergence = Floats(rows);
  hit = Floats(rows);
  if (spec_.has_thresholds()) {
    gate_sum = Floats(rows * c.num_query_heads);
    block_sum = Floats(rows * c.num_query_heads);
    position_weights = Floats(4 * int64_t{limits.length});
    gate_density = Floats(int64_t{c.num_layers} * c.num_query_heads);
    block_density = Floats(int64_t{c.num_layers} * c.num_query_heads);
  }
  const int32_t kept = limits.backward ? c.num_layers : 1;
  for (int32_t i = 0; i < kept && status_.ok(); ++i) MakeKept(saved_bytes);
  const int32_t layers = limits.backward && !limits.recompute ? c.num_layers : 1;
  for (int32_t i = 0; i < layers && status_.ok(); ++i) MakeLayer();
  if (limits.backward) {
    grad_residual = Make(c.model_dim, wide);
    grad_hidden = Make(c.model_dim, dtype);
    if (wide != dtype) scratch_.narrowed = Make(c.model_dim, dtype);
    scratch_.grad_attended = Make(c.query_dim(), dtype);
    scratch_.grad_qkv = Make(spec_.qkv_dim(), dtype);
    if (spec_.has_thresholds()) scratch_.grad_tau = Floats(rows * c.num_query_heads);
    if (spec_.is_native_sparse()) {
      NativeSparseScratch& sparse = scratch_.native_sparse;
      for (Tensor& grad : sparse.grad_branches) grad = Make(c.query_dim(), dtype);
      sparse.grad_keys = MakeRows(CompressedRows(), c.head_dim, dtype);
      sparse.grad_values = MakeRows(CompressedRows(), c.head_dim, dtype);
    }
  }
  return status_;
}

namespace {

// An empty tensor stays empty.
Tensor Cut(const Tensor& tensor, int64_t rows) {
  return tensor.empty() ? tensor : tensor.Rows(0, rows);
}

}  // namespace

KeptLayer Activations::Kept(int32_t layer, int64_t rows) const {
  KeptLayer kept = kept_[std::min(static_cast<size_t>(layer), kept_.size() - 1)];
  kept.input = Cut(kept.input, rows);
  kept.attended = Cut(kept.attended, rows);
  for (Tensor& out : kept.branches.out) out = Cut(out, rows);
  return kept;
}

LayerActivations Activations::Layer(int32_t layer, int64_t rows) const {
  LayerActivations a = layers_[std::min(static_cast<size_t>(layer), layers_.size() - 1)];
  for (Tensor* tensor : {&a.normed, &a.qkv, &a.q, &a.k, &a.v, &a.middle, &a.ffn_normed, &a.gate_up,
                         &a.activated, &a.native_sparse.gates}) {
    *tensor = Cut(*tensor, rows);
  }
  return a;
}

LayerScratch Activations::Scratch(int64_t rows) const {
  LayerScratch scratch = scratch_;
  scratch.narrowed = Cut(scratch.narrowed, rows);
  scratch.grad_attended = Cut(scratch.grad_attended, rows);
  scratch.grad_qkv = Cut(scratch.grad_qkv, rows);
  for (Tensor& grad : scratch.native_sparse.grad_branches) grad = Cut(grad, rows);
  return scratch;
}

}  // namespace eta::training
