// An EventSink that keeps what it is told and lets a test wait for the end.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/request/request.h"

namespace eta::testing {

class Recorder : public EventSink {
 public:
  struct Answer {
    std::vector<StartedEvent> started;
    std::vector<PrefillEvent> prefill;
    std::string text;
    std::vector<int32_t> ids;
    std::vector<TokenDetail> logprobs;
    std::optional<FinishedEvent> finished;
    absl::Status status;
    FinishedEvent so_far;
  };

  void OnStarted(StartedEvent event) override {
    std::lock_guard lock(mutex_);
    answer_.started.push_back(std::move(event));
    changed_.notify_all();
  }
  void OnPrefill(PrefillEvent event) override {
    std::lock_guard lock(mutex_);
    answer_.prefill.push_back(std::move(event));
    changed_.notify_all();
  }
  void OnDelta(DeltaEvent event) override {
    std::lock_guard lock(mutex_);
    answer_.text += event.text;
    answer_.ids.insert(answer_.ids.end(), event.ids.begin(), event.ids.end());
    answer_.logprobs.insert(answer_.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    changed_.notify_all();
  }
  void OnFinished(FinishedEvent event) override {
    std::lock_guard lock(mutex_);
    answer_.finished = std::move(event);
    ended_ = true;
    changed_.notify_all();
  }
  void OnFailed(absl::Status status, FinishedEvent so_far) override {
    std::lock_guard lock(mutex_);
    answer_.status = std::move(status);
    answer_.so_far = std::move(so_far);
    ended_ = true;
    changed_.notify_all();
  }
  bool Congested() const override {
    std::lock_guard lock(mutex_);
    return congested_;
  }

  void SetCongested(bool congested) {
    std::lock_guard lock(mutex_);
    congested_ = congested;
  }

  // Blocks until the request has ended.
  Answer Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    return answer_;
  }
  // Blocks until at least `count` ids have come or the request has ended. The request must ask for
  // ids.
  void WaitForIds(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || answer_.ids.size() >= count; });
  }
  void WaitForStart() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || !answer_.started.empty(); });
  }
  Answer SoFar() const {
    std::lock_guard lock(mutex_);
    return answer_;
  }
  bool ended() const {
    std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Answer answer_;
  bool congested_ = false;
  bool ended_ = false;
};

}  // namespace eta::testing
