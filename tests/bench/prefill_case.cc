#include "tests/bench/prefill_case.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <random>
#include <span>

#include "kernels/dtype.h"

namespace eta::bench {
namespace {

constexpr float kEpsilon = 1e-5f;
constexpr float kBeta = 5.0f;
constexpr float kThreshold = 1.0f;

template <typename T>
T Require(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::cerr << value.status() << "\n";
    std::exit(1);
  }
  return std::move(*value);
}

}  // namespace

PrefillCase::PrefillCase(Backend& backend, const ModelShape& shape, int32_t tokens, int32_t chunk,
                         DType kv_dtype, Gate gate)
    : backend_(backend), shape_(shape), tokens_(tokens), chunk_(chunk), gate_(gate) {
  geometry_.num_kv_heads = shape.kv_heads;
  geometry_.head_dim = shape.head_dim;
  geometry_.dtype = kv_dtype;
  const KvLayout layout = Require(backend_.Layout(geometry_));
  const auto blocks =
      static_cast<size_t>((tokens + geometry_.block_size - 1) / geometry_.block_size);
  const int64_t d = shape.model_dim;
  for (int32_t i = 0; i < shape.layers; ++i) {
    layers_.push_back({RandomMatrix(q_width() + 2 * kv_width(), d), RandomMatrix(d, q_width()),
                       RandomMatrix(2 * int64_t{shape.ffn_dim}, d), RandomMatrix(d, shape.ffn_dim),
                       Require(backend_.Allocate(blocks * layout.tile_bytes)),
                       Require(backend_.Allocate(blocks * layout.record_bytes))});
  }
  embedding_ = RandomMatrix(shape.vocab, d);
  const auto floats = [&](int64_t rows, int64_t cols) {
    return Zeros(static_cast<size_t>(rows * cols));
  };
  norm_weight_ = floats(1, d);
  std::fill_n(norm_weight_->as<float>(), d, 1.0f);
  tau_weight_ = floats(shape.query_heads, q_width());
  tau_bias_ = floats(1, shape.query_heads);
  std::fill_n(tau_bias_->as<float>(), shape.query_heads, kThreshold);
  x_ = floats(chunk, d);
  normed_ = floats(chunk, d);
  qkv_ = floats(chunk, q_width() + 2 * kv_width());
  thresholds_ = floats(chunk, shape.query_heads);
  attended_ = floats(chunk, q_width());
  gate_up_ = floats(chunk, 2 * int64_t{shape.ffn_dim});
  ffn_ = floats(chunk, shape.ffn_dim);
  logits_ = floats(1, shape.vocab);
  for (int32_t i = 0; i < tokens; ++i) ids_.push_back((i * 7919 + 13) % shape.vocab);
  for (size_t i = 0; i < blocks; ++i) block_table_.push_back(static_cast<int32_t>(i));
}

std::unique_ptr<Matrix> PrefillCase::RandomMatrix(int64_t rows, int64_t cols) {
  std::mt19937 random(
      static_cast<uint32_t>(rows * 31 + cols + static_cast<int64_t>(layers_.size())));
  std::normal_distribution<float> normal(0.0f, 1.5f / std::sqrt(static_cast<float>(cols)));
  std::vector<uint16_t> values(static_cast<size_t>(rows * cols));
  for (uint16_t& value : values) value = FloatToBFloat16(normal(random));
  const HostMatrix part{values.data(), DType::kBFloat16, rows, cols};
  return Require(backend_.Pack(std::span(&part, 1), WeightFormat::kNative));
}

std::unique_ptr<Buffer> PrefillCase::Zeros(size_t count) {
  auto buffer = Require(backend_.Allocate(count * sizeof(float)));
  std::fill_n(buffer->as<float>(), count, 0.0f);
  return buffer;
}

TensorView PrefillCase::View(const Buffer& buffer, int64_t rows, int64_t cols) const {
  return {buffer.as<float>(), rows, cols, cols};
}

void PrefillCase::Plan(int32_t begin, int32_t count) {
  sequence_ = {};
  sequence_.num_rows = count;
  sequence_.position = begin;
  sequence_.kind = RowKind::kPrefill;
  sequence_.rope_theta = 500000.0f;
  sequence_.block_table = block_table_;
  batch_.tokens = std::span(ids_).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  batch_.sequences = std::span(&sequence_, 1);
  backend_.Plan(batch_);
}

AttentionParams PrefillCase::Attention(const Layer& layer, int32_t rows) const {
  AttentionParams params{};
  params.q = View(*qkv_, rows, q_width() + 2 * kv_width()).Columns(0, q_width());
  params.thresholds = View(*thresholds_, rows, shape_.query_heads);
  params.num_query_heads = shape_.query_heads;
  params.geometry = geometry_;
  params.kv = layer.kv();
  params.softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  params.gate = gate_;
  params.beta = kBeta;
  params.out = View(*attended_, rows, q_width());
  return params;
}

void PrefillCase::RunLayer(Layer& layer, int32_t index, int32_t rows) {
  const TensorView x = View(*x_, rows, shape_.model_dim);
  const TensorView normed = View(*normed_, rows, shape_.model_dim);
  const TensorView qkv = View(*qkv_, rows, q_width() + 2 * kv_width());
  const TensorView q = qkv.Columns(0, q_width());
  const TensorView k = qkv.Columns(q_width(), kv_width());
  const TensorView v = qkv.Columns(q_width() + kv_width(), kv_width());
  const TensorView gate_up = View(*gate_up_, rows, 2 * int64_t{shape_.ffn_dim});
  const TensorView ffn = View(*ffn_, rows, shape_.ffn_dim);
  const float* norm = norm_weight_->as<float>();

  backend_.RmsNorm({x, norm, kEpsilon, {}, normed});
  backend_.MatMul({normed, layer.qkv.get(), qkv, false, true});
  backend_.Rope({q, k, shape_.head_dim});
  backend_.AppendKv({k, v, geometry_, layer.kv()});
  backend_.PredictThresholds({index, q, tau_weight_->as<float>(), tau_bias_->as<float>(),
                              View(*thresholds_, rows, shape_.query_heads)});
  backend_.PrefillAttention(Attention(layer, rows));
  backend_.MatMul({View(*attended_, rows, q_width()), layer.out.get(), x, true, true});
  backend_.RmsNorm({x, norm, kEpsilon, {}, normed});
  backend_.MatMul({normed, layer.gate_up.get(), gate_up, false, true});
  backend_.SwiGlu({gate_up, ffn});
  backend_.MatMul({ffn, layer.down.get(), x, true, true});
}

void PrefillCase::Step(int32_t begin, int32_t count) {
  Plan(begin, count);
  const TensorView x = View(*x_, count, shape_.model_dim);
  backend_.Embed({embedding_.get(), x});
  for (int32_t i = 0; i < shape_.layers; ++i) {
    RunLayer(layers_[static_cast<size_t>(i)], i, count);
  }
  if (begin + count == tokens_) {
    const int32_t last = count - 1;
    const TensorView normed = View(*normed_, 1, shape_.model_dim);
    backend_.RmsNorm({x, norm_weight_->as<float>(), kEpsilon, std::span(&last, 1), normed});
    backend_.MatMul({normed, embedding_.get(), View(*logits_, 1, shape_.vocab), false});
  }
  if (const absl::Status status = backend_.Finish(); !status.ok()) {
    std::cerr << status << "\n";
    std::exit(1);
  }
}

void PrefillCase::Run() {
  for (int32_t begin = 0; begin < tokens_; begin += chunk_) {
    Step(begin, std::min(chunk_, tokens_ - begin));
  }
}

void PrefillCase::Attend() {
  const int32_t begin = (tokens_ - 1) / chunk_ * chunk_;
  Plan(begin, tokens_ - begin);
  backend_.PrefillAttention(Attention(layers_.back(), tokens_ - begin));
  if (!backend_.Finish().ok()) std::exit(1);
}

std::vector<float> PrefillCase::attention_output() const {
  const int64_t rows = tokens_ - (tokens_ - 1) / chunk_ * chunk_;
  return {attended_->as<float>(), attended_->as<float>() + rows * q_width()};
}

double PrefillCase::matmul_flop() const {
  const double d = shape_.model_dim;
  const double weights =
      d * static_cast<double>(2 * q_width() + 2 * kv_width()) + 3.0 * d * shape_.ffn_dim;
  return 2.0 * tokens_ * shape_.layers * weights;
}

double PrefillCase::attention_flop() const {
  const double t = tokens_;
  return shape_.layers * 2.0 * t * (t + 1) * static_cast<double>(q_width());
}

double PrefillCase::last_attention_flop() const {
  const double t = tokens_;
  const auto before = (tokens_ - 1) / chunk_ * chunk_;  // keys of all chunks but the last
  const auto b = static_cast<double>(before);
  return 2.0 * (t * (t + 1) - b * (b + 1)) * static_cast<double>(q_width());
}

}  // namespace eta::bench
