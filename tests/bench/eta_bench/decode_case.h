// The steps that eta-bench decode times, and what they count.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"
#include "engine/model/rope/rope_base.h"
#include "tests/bench/eta_bench/data.h"
#include "tests/bench/eta_bench/eta_bench.h"

namespace eta::bench {

// A model, a full cache, and the rows of each sequence at its last positions.
class DecodeCase {
 public:
  DecodeCase(Backend& backend, const TensorSource& source, const KvContent& content,
             std::span<const SequencePlace> places, int32_t num_blocks, WeightFormat weights,
             int32_t rows_per_sequence)
      : backend_(backend),
        block_size_(content.geometry().block_size),
        rows_each_(rows_per_sequence),
        all_rows_(places.size()) {
    int32_t context = 0;
    for (const SequencePlace& place : places) context = std::max(context, place.num_tokens);
    model_ = Require(Model::Load(source, backend,
                                 {.weights = weights,
                                  .max_rows = static_cast<int32_t>(places.size()) * rows_each_,
                                  .max_context = context,
                                  .block_size = block_size_}));
    const ModelConfig& config = model_->config();
    cache_ = Require(KvCache::Create(backend, OneGroup(config), content.geometry(), num_blocks));
    std::vector<KvLayerView> layers;
    for (int32_t i = 0; i < config.num_layers; ++i) layers.push_back(cache_->layer(i));
    content.Fill(backend, places, layers);
    thresholds_.resize(static_cast<size_t>(config.num_layers * config.num_query_heads));
    for (size_t i = 0; i < places.size(); ++i) {
      SequenceRows& row = all_rows_[i];
      row.row_begin = static_cast<int32_t>(i) * rows_each_;
      row.num_rows = rows_each_;
      row.position = places[i].num_tokens - rows_each_;
      row.kind = RowKind::kDecode;
      row.rope_theta = RopeTheta(config, context);
      row.frozen_thresholds = thresholds_.data();
      row.block_table = places[i].block_table;
    }
    UseRows(places.size());
  }

  // From now on a step has the rows of the first `count` sequences.
  void UseRows(size_t count) {
    const ModelConfig& config = model_->config();
    rows_.assign(all_rows_.begin(), all_rows_.begin() + static_cast<std::ptrdiff_t>(count));
    tokens_.clear();
    samples_.clear();
    logit_rows_.clear();
    possible_ = 0.0;
    once_ = 0.0;
    seen_in_windows_ = 0.0;
    full_blocks_ = 0;
    for (const SequenceRows& row : rows_) {
      const int32_t longest = row.position + row.num_rows;
      for (int32_t tokens = row.position + 1; tokens <= longest; ++tokens) possible_ += tokens;
      once_ += longest;
      full_blocks_ += longest / block_size_;
      for (const LayerKind& layer : config.layers) {
        if (layer.window == 0) continue;
        seen_in_windows_ += std::min(layer.window + row.num_rows - 1, longest);
      }
    }
    num_rows_ = count * static_cast<size_t>(rows_each_);
    for (size_t i = 0; i < num_rows_; ++i) {
      tokens_.push_back(
          static_cast<int32_t>((i * 7919 + 13) % static_cast<size_t>(config.vocab_size)));
      samples_.push_back({.temperature = 0.0f});
      logit_rows_.push_back(static_cast<int32_t>(i));
    }
    const size_t counted = static_cast<size_t>(config.num_layers) * num_rows_;
    attended_.resize(counted * static_cast<size_t>(config.num_query_heads));
    read_.resize(counted * static_cast<size_t>(config.num_kv_heads));
    expert_rows_.resize(static_cast<size_t>(config.num_layers * config.num_experts));
  }

  void SetThreshold(float threshold) {
    std::fill(thresholds_.begin(), thresholds_.end(), threshold);
  }
  void SetAdmitAll(bool admit_all) {
    for (SequenceRows& row : rows_) row.attention.admit_all = admit_all;
  }

  // From now on every step draws a profile for each of its rows; 0: one profile for all. The
  // profiles are separate tables with the current threshold. They differ by less than changes the
  // densities.
  void SetProfiles(int32_t count) {
    profiles_.assign(static_cast<size_t>(count), thresholds_);
    for (size_t i = 0; i < profiles_.size(); ++i) {
      for (float& threshold : profiles_[i]) threshold += 1e-6f * static_cast<float>(i);
    }
    for (SequenceRows& row : rows_) row.frozen_thresholds = thresholds_.data();
  }

  // Enqueues a whole step up to its sampled tokens. The caller calls Finish().
  void Enqueue() {
    Forward();
    Draw();
  }
  // The parts of Enqueue.
  void Forward() {
    if (!profiles_.empty()) {
      for (SequenceRows& row : rows_) {
        row.frozen_thresholds = profiles_[draw_() % profiles_.size()].data();
      }
    }
    RequireOk(
        model_->Forward({tokens_, rows_}, *cache_,
                        {.tokens_attended = attended_.data(),
                         .tokens_read = read_.data(),
                         .expert_rows = expert_rows_.empty() ? nullptr : expert_rows_.data()}));
  }
  void Draw() {
    for (size_t begin = 0; begin < num_rows_; begin += Model::max_logit_rows()) {
      const size_t count = std::min<size_t>(Model::max_logit_rows(), num_rows_ - begin);
      model_->ComputeLogits(std::span(logit_rows_).subspan(begin, count));
      const std::span<SampleRow> samples = std::span(samples_).subspan(begin, count);
      for (size_t i = 0; i < count; ++i) samples[i].logits_row = static_cast<int32_t>(i);
      model_->Sample(samples);
    }
  }
  void RunOnce() {
    Enqueue();
    RequireOk(backend_.Finish());
  }

  // Times of steps that are prepared while the one before runs: from the end of one to the end of
  // the next, and the part of it that the device did not take.
  struct PreparedTiming {
    double wall = 0.0;
    double host = 0.0;
  };
  PreparedTiming TimePrepared(int samples) {
    constexpr int kWarmUp = 3;
    std::vector<double> wall;
    std::vector<double> host;
    Enqueue();
    backend_.Launch();
    Stopwatch watch;
    for (int i = 0; i < kWarmUp + samples; ++i) {
      Forward();
      RequireOk(backend_.Finish());
      const double seconds = watch.seconds();
      watch = Stopwatch();
      backend_.SetTokens(tokens_);
      Draw();
      backend_.Launch();
      if (i < kWarmUp) continue;
      wall.push_back(seconds);
      host.push_back(seconds - backend_.last_step_seconds().value_or(seconds));
    }
    RequireOk(backend_.Finish());
    return {Median(wall), Median(host)};
  }

  // The keys, and the full blocks, of a step's sequences in all full layers together: what one row
  // of each reads at most. And the keys that their rows see in layers with a window.
  double num_tokens() const { return num_full_layers() * once_; }
  double num_full_blocks() const { return num_full_layers() * static_cast<double>(full_blocks_); }
  double tokens_in_windows() const { return seen_in_windows_; }
  int32_t num_full_layers() const { return model_->config().num_full_layers(); }
  int32_t num_rows() const { return static_cast<int32_t>(num_rows_); }

  // The bytes of weights that a decode step with frozen thresholds reads: all but the predictor,
  // the embedding, of which it reads one row per token if it is not the head too, and experts. int4
  // keeps the embedding at 8 bits.
  double WeightBytes(WeightFormat weights) const {
    const ModelConfig& config = model_->config();
    const double of_number = weights == WeightFormat::kNative ? 2.0 : 34.0 / 32.0;
    const double embedding =
        config.tie_word_embeddings ? 0.0 : of_number * config.vocab_size * config.model_dim;
    const double heads = config.num_query_heads;
    const double predictor = config.has_predictor
                                 ? num_full_layers() * heads * (heads * config.head_dim + 1) * 4.0
                                 : 0.0;
    return static_cast<double>(model_->weight_bytes() - model_->expert_bytes()) - embedding -
           predictor;
  }
  // Of one expert of one layer, as the device holds it; 0: there are none.
  double ExpertBytes() const {
    const ModelConfig& config = model_->config();
    return static_cast<double>(model_->expert_bytes()) /
           std::max(config.num_layers * config.num_experts, 1);
  }

  // Densities of the last step, over full layers.
  double UnionDensity() const { return Density(read_); }
  double HeadDensity() const { return Density(attended_); }
  // Experts that had rows in the last step, summed over layers.
  int64_t NumExpertsRead() const {
    return std::ranges::count_if(expert_rows_, [](int32_t rows) { return rows > 0; });
  }
  std::vector<float> Logits(int32_t row) {
    std::vector<float> logits(static_cast<size_t>(model_->config().vocab_size));
    model_->DownloadLogits(row, logits.data());
    return logits;
  }
  bool finite() const {
    return std::all_of(samples_.begin(), samples_.end(),
                       [](const SampleRow& sample) { return sample.finite && sample.token >= 0; });
  }

  // Finds the threshold at which the union density is within a point of `wanted`.
  float FindThreshold(double wanted) {
    float low = -16.0f;
    float high = 16.0f;
    for (int i = 0; i < 24; ++i) {
      const float middle = 0.5f * (low + high);
      SetThreshold(middle);
      RunOnce();
      if (std::abs(UnionDensity() - wanted) < 0.002) return middle;
      (UnionDensity() > wanted ? low : high) = middle;
    }
    if (std::abs(UnionDensity() - wanted) > 0.01) {
      Fail(absl::StrCat("density ", wanted, ": not reached, the nearest is ", UnionDensity()));
    }
    return thresholds_[0];
  }

 private:
  // Layers with a window count nothing.
  double Density(std::span<const int32_t> counts) const {
    const auto of_layer = static_cast<double>(counts.size()) / model_->config().num_layers;
    return std::accumulate(counts.begin(), counts.end(), 0.0) /
           (num_full_layers() * possible_ * of_layer / static_cast<double>(num_rows_));
  }

  Backend& backend_;
  int32_t block_size_;
  int32_t rows_each_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  std::vector<SequenceRows> all_rows_;
  std::vector<SequenceRows> rows_;
  std::vector<int32_t> tokens_;
  std::vector<SampleRow> samples_;
  std::vector<int32_t> logit_rows_;
  std::vector<float> thresholds_;             // [L, HQ]
  std::vector<std::vector<float>> profiles_;  // [L, HQ] each
  std::mt19937 draw_{1};
  std::vector<int32_t> attended_, read_;
  std::vector<int32_t> expert_rows_;  // [L, E]
  size_t num_rows_ = 0;
  double possible_ = 0.0;  // the keys of all rows together
  double once_ = 0.0;      // those of each sequence's last row
  double seen_in_windows_ = 0.0;
  int64_t full_blocks_ = 0;
};

}  // namespace eta::bench
