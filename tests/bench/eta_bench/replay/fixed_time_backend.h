// A device that computes nothing and takes a given time for the forward pass and for the draws:
// what a step takes beyond these is the host's. It defers. A backend that it forwards to has the
// memory.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <utility>

#include "kernels/forwarding_backend.h"

namespace eta::bench {

class FixedTimeBackend final : public ForwardingBackend {
 public:
  using Clock = std::chrono::steady_clock;

  FixedTimeBackend(std::shared_ptr<Backend> memory, Clock::duration forward, Clock::duration draws)
      : ForwardingBackend(std::move(memory)), forward_(forward), draws_(draws) {}

  bool defers() const override { return true; }
  void Plan(const BatchView&) override {}
  void Embed(const EmbedParams&) override {}
  void RmsNorm(const RmsNormParams&) override {}
  void MatMul(const MatMulParams&) override {}
  void AddBias(const AddBiasParams&) override {}
  void NormHeads(const NormHeadsParams&) override {}
  void Rope(const RopeParams&) override {}
  void AppendKv(const AppendKvParams&) override {}
  void PredictThresholds(const ThresholdParams&) override {}
  void SelectBlocks(const SelectBlocksParams&) override {}
  void SelectPrefillBlocks(const SelectPrefillParams&) override {}
  void DecodeAttention(const AttentionParams&) override {}
  void PrefillAttention(const AttentionParams&) override {}
  void SwiGlu(const SwiGluParams&) override {}
  void Sample(const SampleParams&) override { has_draws_ = true; }
  void SetTokens(std::span<const int32_t>) override {}
  void Discard() override { has_draws_ = false; }

  // Draws that come late begin when they come.
  void Launch() override {
    end_ = std::max(end_, Clock::now());
    if (!std::exchange(runs_, true)) end_ += forward_;
    if (std::exchange(has_draws_, false)) end_ += draws_;
  }
  // As a thread waits for a GPU: without sleep.
  absl::Status Finish() override {
    if (!runs_) Launch();
    while (Clock::now() < end_) {
    }
    runs_ = false;
    return absl::OkStatus();
  }

 private:
  const Clock::duration forward_;
  const Clock::duration draws_;
  bool has_draws_ = false;  // noted
  bool runs_ = false;
  Clock::time_point end_{};
};

}  // namespace eta::bench
