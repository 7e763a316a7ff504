// A backend that forwards to another one and measures the time of its attention.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "kernels/forwarding_backend.h"
#include "kernels/params/selection.h"

namespace eta::bench {

class TimedBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  // Return the seconds in SelectBlocks and in DecodeAttention since the last call, and reset them.
  double TakeSelectSeconds() { return std::exchange(select_seconds_, 0.0); }
  double TakeAttendSeconds() { return std::exchange(attend_seconds_, 0.0); }
  // The same of SelectPrefillBlocks and PrefillAttention.
  double TakePrefillSelectSeconds() { return std::exchange(prefill_select_seconds_, 0.0); }
  double TakePrefillAttendSeconds() { return std::exchange(prefill_attend_seconds_, 0.0); }

  // Leaves these two ops out. Where a step is timed as a whole, it tells what they take.
  void LeavePrefillOut(bool select, bool attend) {
    leaves_select_ = select;
    leaves_attend_ = attend;
  }

  void SelectBlocks(const SelectBlocksParams& params) override {
    const auto begin = std::chrono::steady_clock::now();
    ForwardingBackend::SelectBlocks(params);
    select_seconds_ += Since(begin);
  }
  void DecodeAttention(const AttentionParams& params) override {
    const auto begin = std::chrono::steady_clock::now();
    ForwardingBackend::DecodeAttention(params);
    attend_seconds_ += Since(begin);
  }
  void SelectPrefillBlocks(const SelectPrefillParams& params) override {
    if (leaves_select_) return;
    const auto begin = std::chrono::steady_clock::now();
    ForwardingBackend::SelectPrefillBlocks(params);
    prefill_select_seconds_ += Since(begin);
  }
  void PrefillAttention(const AttentionParams& params) override {
    if (leaves_attend_) return;
    const auto begin = std::chrono::steady_clock::now();
    ForwardingBackend::PrefillAttention(params);
    prefill_attend_seconds_ += Since(begin);
  }

 private:
  static double Since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  double select_seconds_ = 0.0;
  double attend_seconds_ = 0.0;
  double prefill_select_seconds_ = 0.0;
  double prefill_attend_seconds_ = 0.0;
  bool leaves_select_ = false;
  bool leaves_attend_ = false;
};

}  // namespace eta::bench
