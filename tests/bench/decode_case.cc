#include "tests/bench/decode_case.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <numeric>
#include <random>

namespace eta::bench {
namespace {

template <typename T>
T Require(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::cerr << value.status() << "\n";
    std::exit(1);
  }
  return std::move(*value);
}

std::vector<float> Normal(std::mt19937& random, size_t count, float deviation) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace

DecodeCase::DecodeCase(Backend& backend, const CaseShape& shape)
    : backend_(backend), shape_(shape), layout_(Require(backend.Layout(shape.geometry))) {
  const KvGeometry& geometry = shape.geometry;
  const auto heads = static_cast<size_t>(shape.num_query_heads);
  const auto kv_heads = static_cast<size_t>(geometry.num_kv_heads);
  const auto d = static_cast<size_t>(geometry.head_dim);
  num_blocks_ = (shape.context + geometry.block_size - 1) / geometry.block_size;
  block_table_.resize(static_cast<size_t>(num_blocks_));
  std::iota(block_table_.begin(), block_table_.end(), 0);
  const auto pool = static_cast<size_t>(num_blocks_) * static_cast<size_t>(shape.copies);
  const auto capacity = kv_heads * static_cast<size_t>(num_blocks_);
  tiles_ = Require(backend.Allocate(pool * layout_.tile_bytes));
  records_ = Require(backend.Allocate(pool * layout_.record_bytes));
  queries_ = Require(backend.Allocate(heads * d * sizeof(float)));
  thresholds_ = Require(backend.Allocate(heads * sizeof(float)));
  out_ = Require(backend.Allocate(heads * d * sizeof(float)));
  blocks_ = Require(backend.Allocate(capacity * sizeof(uint32_t)));
  heads_ = Require(backend.Allocate(capacity * sizeof(uint32_t)));
  counts_ = Require(backend.Allocate(kv_heads * sizeof(int32_t)));
  tokens_attended_.resize(heads);
  tokens_read_.resize(kv_heads);

  FillCache();
  std::mt19937 random(7);
  const float own = std::sqrt(1.0f - shape.agreement * shape.agreement);
  std::vector<float> queries;
  for (size_t k = 0; k < kv_heads; ++k) {
    const std::vector<float> common = Normal(random, d, shape.agreement);
    for (size_t g = 0; g < heads / kv_heads; ++g) {
      const std::vector<float> apart = Normal(random, d, own);
      for (size_t i = 0; i < d; ++i) queries.push_back(common[i] + apart[i]);
    }
  }
  backend.Upload(queries_->data(), queries.data(), queries.size() * sizeof(float));

  sequence_.num_rows = 1;
  sequence_.position = shape.context - 1;
  sequence_.kind = RowKind::kDecode;
  sequence_.block_table = block_table_;
  batch_ = {token_, {&sequence_, 1}};
}

KvLayerView DecodeCase::Layer(int32_t copy) const {
  const auto first = static_cast<size_t>(copy) * static_cast<size_t>(num_blocks_);
  return {tiles_->data() + first * layout_.tile_bytes,
          records_->data() + first * layout_.record_bytes};
}

TensorView DecodeCase::Rows(const Buffer& buffer, int64_t cols) const {
  const auto rows = static_cast<int64_t>(buffer.size() / sizeof(float)) / cols;
  return {buffer.as<float>(), rows, cols, cols};
}

void DecodeCase::FillCache() {
  const KvGeometry& geometry = shape_.geometry;
  const auto width = static_cast<size_t>(geometry.num_kv_heads * geometry.head_dim);
  const auto rows = static_cast<size_t>(shape_.context);
  const auto b = static_cast<size_t>(geometry.block_size);
  std::mt19937 random(11);
  std::vector<float> keys = Normal(random, rows * width, 0.5f);
  std::vector<float> centre;
  for (size_t t = 0; t < rows; ++t) {
    if (t % b == 0) centre = Normal(random, width, 1.0f);
    for (size_t i = 0; i < width; ++i) keys[t * width + i] += centre[i];
  }
  const std::vector<float> values = Normal(random, rows * width, 1.0f);

  auto k = Require(backend_.Allocate(keys.size() * sizeof(float)));
  auto v = Require(backend_.Allocate(values.size() * sizeof(float)));
  backend_.Upload(k->data(), keys.data(), keys.size() * sizeof(float));
  backend_.Upload(v->data(), values.data(), values.size() * sizeof(float));
  const std::vector<int32_t> tokens(rows, 0);
  SequenceRows prompt;
  prompt.num_rows = shape_.context;
  prompt.kind = RowKind::kPrefill;
  prompt.block_table = block_table_;
  const BatchView batch{tokens, {&prompt, 1}};
  backend_.Plan(batch);
  backend_.AppendKv({Rows(*k, static_cast<int64_t>(width)), Rows(*v, static_cast<int64_t>(width)),
                     geometry, Layer(0)});
  if (!backend_.Finish().ok()) std::exit(1);
  const size_t blocks = static_cast<size_t>(num_blocks_);
  for (int32_t copy = 1; copy < shape_.copies; ++copy) {
    std::memcpy(Layer(copy).tiles, Layer(0).tiles, blocks * layout_.tile_bytes);
    std::memcpy(Layer(copy).records, Layer(0).records, blocks * layout_.record_bytes);
  }
}

void DecodeCase::SetThreshold(float threshold) {
  const std::vector<float> values(static_cast<size_t>(shape_.num_query_heads), threshold);
  backend_.Upload(thresholds_->data(), values.data(), values.size() * sizeof(float));
}

void DecodeCase::Select(int32_t copy) {
  const int64_t width = int64_t{shape_.num_query_heads} * shape_.geometry.head_dim;
  backend_.Plan(batch_);
  backend_.SelectBlocks(
      {0,
       Rows(*queries_, width),
       Rows(*thresholds_, shape_.num_query_heads),
       shape_.num_query_heads,
       shape_.geometry,
       Layer(copy),
       1.0f / std::sqrt(static_cast<float>(shape_.geometry.head_dim)),
       {blocks_->as<uint32_t>(), heads_->as<uint32_t>(), counts_->as<int32_t>(), num_blocks_},
       {tokens_attended_.data(), tokens_read_.data()}});
  if (!backend_.Finish().ok()) std::exit(1);
}

void DecodeCase::Attend(int32_t copy) {
  const int64_t width = int64_t{shape_.num_query_heads} * shape_.geometry.head_dim;
  backend_.Plan(batch_);
  backend_.DecodeAttention(
      {Rows(*queries_, width),
       Rows(*thresholds_, shape_.num_query_heads),
       shape_.num_query_heads,
       shape_.geometry,
       Layer(copy),
       1.0f / std::sqrt(static_cast<float>(shape_.geometry.head_dim)),
       Gate::kSilu,
       8.0f,
       {blocks_->as<uint32_t>(), heads_->as<uint32_t>(), counts_->as<int32_t>(), num_blocks_},
       Rows(*out_, width)});
  if (!backend_.Finish().ok()) std::exit(1);
}

int64_t DecodeCase::tokens_read() const {
  return std::accumulate(tokens_read_.begin(), tokens_read_.end(), int64_t{0});
}

int64_t DecodeCase::tokens_attended() const {
  return std::accumulate(tokens_attended_.begin(), tokens_attended_.end(), int64_t{0});
}

Densities DecodeCase::densities() const {
  const double context = shape_.context;
  return {static_cast<double>(tokens_attended()) / (context * shape_.num_query_heads),
          static_cast<double>(tokens_read()) / (context * shape_.geometry.num_kv_heads)};
}

std::vector<float> DecodeCase::output() const {
  std::vector<float> values(out_->size() / sizeof(float));
  backend_.Download(values.data(), out_->data(), out_->size());
  return values;
}

void SetHeadDensity(DecodeCase& attention, double wanted) {
  float low = -20.0f;
  float high = 20.0f;
  for (int i = 0; i < 30; ++i) {
    const float middle = 0.5f * (low + high);
    attention.SetThreshold(middle);
    attention.Select(0);
    (attention.densities().head > wanted ? low : high) = middle;
  }
}

}  // namespace eta::bench
