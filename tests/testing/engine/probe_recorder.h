// A ProbeSink that keeps what it is told, lets a test wait for the end, and can hold the engine's
// step thread still at a chosen row, so that a test can act in the middle of a probe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace eta::testing {

class ProbeRecorder : public ProbeSink {
 public:
  ProbeRecorder() = default;
  // Holds at the first report of at least `hold_at` rows.
  explicit ProbeRecorder(int32_t hold_at) : hold_at_(hold_at) {}

  void OnProgress(int32_t rows_done) override {
    std::unique_lock lock(mutex_);
    progress_.push_back(rows_done);
    if (rows_done < hold_at_) return;
    hold_at_ = std::numeric_limits<int32_t>::max();
    held_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
  }
  void OnEnded(absl::StatusOr<ProbeOutcome> outcome) override {
    const std::lock_guard lock(mutex_);
    ++ends_;
    outcome_ = std::move(outcome);
    changed_.notify_all();
  }

  // Blocks until the probe has ended.
  absl::StatusOr<ProbeOutcome> Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return outcome_.has_value(); });
    return *outcome_;
  }
  void WaitUntilHeld() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return held_ || outcome_; });
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  std::vector<int32_t> progress() const {
    const std::lock_guard lock(mutex_);
    return progress_;
  }
  int ends() const {
    const std::lock_guard lock(mutex_);
    return ends_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int32_t hold_at_ = std::numeric_limits<int32_t>::max();
  bool held_ = false;
  int ends_ = 0;
  std::vector<int32_t> progress_;
  std::optional<absl::StatusOr<ProbeOutcome>> outcome_;
};

// A probe that is refused ends with the refusal.
inline std::shared_ptr<ProbeRecorder> SubmitProbe(
    Engine& engine, Probe probe,
    std::shared_ptr<ProbeRecorder> recorder = std::make_shared<ProbeRecorder>()) {
  const auto handle = engine.SubmitProbe(std::move(probe), recorder);
  if (!handle.ok()) recorder->OnEnded(handle.status());
  return recorder;
}

// Submits and waits.
inline absl::StatusOr<ProbeOutcome> Measure(Engine& engine, Probe probe) {
  return SubmitProbe(engine, std::move(probe))->Wait();
}

}  // namespace eta::testing
