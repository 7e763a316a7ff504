// A backend that forwards to another one, which defers, and counts its steps.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "kernels/forwarding_backend.h"

namespace eta::testing {

// Counts shared by the test and the backend that the engine owns. Thread-safe.
struct StepCounts {
  std::atomic<int> launched = 0;
  std::atomic<int> parts = 0;      // of these, launched behind the first
  std::atomic<int> prepared = 0;   // steps planned while another one ran
  std::atomic<int> discarded = 0;  // prepared steps that were discarded
  std::atomic<int> misused = 0;    // calls that Backend does not allow

  void Clear() { launched = parts = prepared = discarded = misused = 0; }
};

class StepWatch final : public ForwardingBackend {
 public:
  StepWatch(std::shared_ptr<Backend> backend, std::shared_ptr<StepCounts> counts)
      : ForwardingBackend(std::move(backend)), counts_(std::move(counts)) {}

  void Plan(const BatchView& batch) override {
    Require(!prepared_);
    prepared_ = runs_;
    counts_->prepared += prepared_ ? 1 : 0;
    ForwardingBackend::Plan(batch);
  }
  void SetTokens(std::span<const int32_t> tokens) override {
    Require(prepared_ && !runs_);
    ForwardingBackend::SetTokens(tokens);
  }
  void Launch() override {
    Require(!runs_ || !prepared_);  // the first part of a step, or another one
    ++(runs_ ? counts_->parts : counts_->launched);
    prepared_ = false;
    runs_ = true;
    ForwardingBackend::Launch();
  }
  void Discard() override {
    Require(prepared_);
    ++counts_->discarded;
    prepared_ = false;
    ForwardingBackend::Discard();
  }
  absl::Status Finish() override {
    Require(runs_ || !prepared_);
    runs_ = false;
    return ForwardingBackend::Finish();
  }
  void Upload(std::byte* to, const void* from, size_t bytes) override {
    Require(!runs_ && !prepared_);
    ForwardingBackend::Upload(to, from, bytes);
  }
  void Download(void* to, const std::byte* from, size_t bytes) override {
    Require(!runs_ && !prepared_);
    ForwardingBackend::Download(to, from, bytes);
  }

 private:
  void Require(bool allowed) {
    if (!allowed) ++counts_->misused;
  }

  std::shared_ptr<StepCounts> counts_;
  bool runs_ = false;
  bool prepared_ = false;  // a step is noted that was planned while another one ran
};

}  // namespace eta::testing
