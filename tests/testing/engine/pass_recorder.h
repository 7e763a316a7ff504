// A PassSink that keeps what it is told and lets a test wait for the end. It can hold the engine's
// step thread at a chosen row, so that a test can act in the middle of a pass.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/front/engine.h"

namespace eta::testing {

class PassRecorder : public PassSink {
 public:
  PassRecorder() = default;
  // Holds the step thread at the first report of at least `hold_at` rows.
  explicit PassRecorder(int32_t hold_at) : hold_at_(hold_at) {}

  void OnProgress(int32_t rows_done) override {
    std::unique_lock lock(mutex_);
    progress_.push_back(rows_done);
    if (rows_done < hold_at_) return;
    hold_at_ = std::numeric_limits<int32_t>::max();
    held_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
  }
  void OnEnded(absl::StatusOr<PassOutcome> outcome) override {
    const std::lock_guard lock(mutex_);
    ++ends_;
    outcome_ = std::move(outcome);
    changed_.notify_all();
  }

  // Blocks until the pass has ended.
  absl::StatusOr<PassOutcome> Wait() {
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
  std::optional<absl::StatusOr<PassOutcome>> outcome_;
};

// Submits a pass. If it is refused, the recorder ends with the refusal.
inline std::shared_ptr<PassRecorder> SubmitPass(
    Engine& engine, Pass pass,
    std::shared_ptr<PassRecorder> recorder = std::make_shared<PassRecorder>()) {
  const auto handle = engine.SubmitPass(std::move(pass), recorder);
  if (!handle.ok()) recorder->OnEnded(handle.status());
  return recorder;
}

// Submits and waits.
inline absl::StatusOr<PassOutcome> Measure(Engine& engine, Pass pass) {
  return SubmitPass(engine, std::move(pass))->Wait();
}

}  // namespace eta::testing
