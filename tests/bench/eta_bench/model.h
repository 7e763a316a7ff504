// A model of any geometry with random weights, made in memory.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/checkpoint/tensor_source.h"
#include "kernels/cpu/workers.h"

namespace eta::bench {

struct ModelShape {
  int32_t layers = 22;
  int32_t width = 2048;
  int32_t ffn = 8192;
  int32_t vocab = 32768;
  int32_t heads = 32;
  int32_t kv_heads = 4;
  int32_t head_dim = 64;
  int32_t block = 64;
  int32_t window = 0;         // more than 0: a Gemma 3, whose layers have it
  int32_t window_period = 6;  // but for every so many-th, a full one
  int32_t max_context = 131072;
  int32_t experts = 0;  // more than 0: a Qwen3-MoE, with experts in every layer
  int32_t experts_per_token = 8;
  int32_t expert_ffn = 768;
  bool plain = false;  // a LLaMA, which predicts no thresholds and has no gate
};

// Weights are bfloat16 and keep the scale of their input; norms are 1. With a predictor its bias is
// 0. Experts have the numbers of one of four, since making all would take minutes. `float8`: the
// layers' projections are e4m3 with a scale for every channel.
class RandomModel final : public TensorSource {
 public:
  RandomModel(const ModelShape& shape, uint64_t seed, cpu::Workers& workers, bool float8 = false);

  const std::string& config_json() const override { return config_json_; }
  const std::map<std::string, TensorInfo>& tensors() const override { return tensors_; }
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const override;
  absl::StatusOr<StoredTensor> ReadStored(const std::string& name) const override;

 private:
  std::vector<std::byte> Make(const std::string& name, const TensorInfo& info) const;

  uint64_t seed_;
  cpu::Workers& workers_;
  bool float8_;
  float norm_ = 1.0f;  // as stored
  std::string config_json_;
  std::map<std::string, TensorInfo> tensors_;
  mutable std::map<std::string, std::vector<std::byte>> made_;  // of experts
};

}  // namespace eta::bench
