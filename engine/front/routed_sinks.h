// The sinks that a router hands to its engines: each counts a request or pass in an engine's load
// until that lets go of it, however it ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/front/routed_requests.h"
#include "engine/request/pass.h"
#include "engine/request/prepared_request.h"
#include "engine/request/request.h"

namespace eta {

// Per engine: tokens that what it was sent may still ask for, roughly.
using EngineLoads = std::vector<std::atomic<int64_t>>;

// What an engine was sent, on its load for as long as this lives.
class LoadShare {
 public:
  LoadShare(std::shared_ptr<EngineLoads> loads, size_t engine, int64_t cost);
  ~LoadShare();
  LoadShare(const LoadShare&) = delete;
  LoadShare& operator=(const LoadShare&) = delete;

 private:
  const std::shared_ptr<EngineLoads> loads_;
  const size_t engine_;
  const int64_t cost_;
};

// Charge and the events come from one thread at a time: that of Submit before an engine has the
// request, then the step thread of the engine that has it.
class RoutedSink final : public EventSink, public std::enable_shared_from_this<RoutedSink> {
 public:
  // Submits what `engine` has given back to another one, with the same sink; false: none takes it.
  using Replace = std::function<bool(const PreparedRequest& request,
                                     const std::shared_ptr<RoutedSink>& sink, size_t engine)>;

  RoutedSink(std::shared_ptr<EventSink> sink, std::shared_ptr<EngineLoads> loads,
             std::shared_ptr<RoutedRequests> routed, Replace replace);
  ~RoutedSink() override { routed_->Close(handle_); }

  uint64_t handle() const { return handle_; }
  int32_t moves() const { return moves_; }
  // The request goes to `engine` now, and to no other.
  void Charge(size_t engine, int64_t cost);

  void OnStarted(StartedEvent event) override { sink_->OnStarted(std::move(event)); }
  void OnPrefill(PrefillEvent event) override { sink_->OnPrefill(std::move(event)); }
  void OnDelta(DeltaEvent event) override { sink_->OnDelta(std::move(event)); }
  void OnFinished(FinishedEvent event) override { sink_->OnFinished(std::move(event)); }
  void OnFailed(absl::Status status, FinishedEvent so_far) override {
    sink_->OnFailed(std::move(status), std::move(so_far));
  }
  bool Congested() const override { return sink_->Congested(); }
  bool OnGivenBack(const PreparedRequest& request) override;

 private:
  const std::shared_ptr<EventSink> sink_;
  const std::shared_ptr<EngineLoads> loads_;
  const std::shared_ptr<RoutedRequests> routed_;
  const Replace replace_;
  const uint64_t handle_;
  size_t engine_ = 0;
  std::optional<LoadShare> load_;
  int32_t moves_ = 0;
};

class RoutedPassSink final : public PassSink {
 public:
  RoutedPassSink(std::shared_ptr<PassSink> sink, std::shared_ptr<EngineLoads> loads, size_t engine,
                 int64_t cost, std::shared_ptr<RoutedRequests> routed);
  ~RoutedPassSink() override { routed_->Close(handle_); }

  uint64_t handle() const { return handle_; }

  void OnProgress(int32_t rows_done) override { sink_->OnProgress(rows_done); }
  void OnEnded(absl::StatusOr<PassOutcome> outcome) override { sink_->OnEnded(std::move(outcome)); }

 private:
  const std::shared_ptr<PassSink> sink_;
  const LoadShare load_;
  const std::shared_ptr<RoutedRequests> routed_;
  const uint64_t handle_;
};

}  // namespace eta
