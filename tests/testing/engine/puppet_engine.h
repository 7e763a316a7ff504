// An engine that moves only when the test tells it to. It checks and queues requests, and the test
// plays the step thread. It pretends to serve "puppet": a gated model with a predictor and 1000
// tokens. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/front/engine.h"
#include "tests/testing/engine/puppet_formats.h"

namespace eta::testing {

// One accepted request. The test sends its events from one thread at a time.
class PuppetCall {
 public:
  PuppetCall(uint64_t handle, Request request, std::shared_ptr<EventSink> sink);

  const Request& request() const { return request_; }
  uint64_t handle() const { return handle_; }

  void Start(int32_t prompt_tokens = 3);
  void Say(const std::string& text, std::vector<TextMark> marks = {});
  void Finish(FinishReason reason = FinishReason::kLength);
  void Fail(const absl::Status& status);
  bool Congested() const;

  EventSink& sink() { return *sink_; }
  std::weak_ptr<EventSink> weak_sink() const { return sink_; }
  // Drops the sink, as the engine does after the last event.
  void Forget();
  bool ended() const { return ended_; }

 private:
  const uint64_t handle_;
  const Request request_;
  std::shared_ptr<EventSink> sink_;
  int32_t output_tokens_ = 0;
  std::atomic<bool> ended_ = false;
};

// One accepted pass. The test ends it from one thread at a time.
class PuppetPass {
 public:
  PuppetPass(uint64_t handle, Pass pass, std::shared_ptr<PassSink> sink)
      : handle_(handle), pass_(std::move(pass)), sink_(std::move(sink)) {}

  const Pass& pass() const { return pass_; }
  uint64_t handle() const { return handle_; }

  void Progress(int32_t rows_done) { sink_->OnProgress(rows_done); }
  void End(absl::StatusOr<PassOutcome> outcome);
  bool ended() const { return ended_; }

 private:
  const uint64_t handle_;
  const Pass pass_;
  std::shared_ptr<PassSink> sink_;
  std::atomic<bool> ended_ = false;
};

class PuppetEngine final : public Engine {
 public:
  explicit PuppetEngine(Limits limits = {});
  ~PuppetEngine() override { Drain(Clock::now()); }

  // Refuses the next requests with these statuses, in order; OK lets one in.
  void Refuse(absl::Status status);
  // Returns the oldest submitted call that was not returned yet, or waits for the next one. Null
  // after 10 s.
  std::shared_ptr<PuppetCall> TakeCall();
  // The same call, started. Throws, which fails the test, where TakeCall is null.
  std::shared_ptr<PuppetCall> TakeAndStart();
  // True once this call has been cancelled; false after 10 s.
  bool AwaitCancel(const PuppetCall& call) { return AwaitCancel(call.handle()); }
  bool AwaitCancel(uint64_t handle);
  // Returns the next pass, as TakeCall does.
  std::shared_ptr<PuppetPass> TakePass();
  void SetSnapshot(const EngineSnapshot& snapshot);
  // How answers to chats look, `in_reasoning`: they begin in it. Before any call.
  void AnswerAs(AnswerForm form, bool in_reasoning = false) {
    info_.answer_form = std::move(form);
    in_reasoning_ = in_reasoning;
  }
  int submissions() const;
  // Of texts that were made tokens.
  int64_t tokenized_bytes() const { return tokenized_bytes_; }

  // The interface of Engine:
  const EngineInfo& info() const override { return info_; }
  const Limits& limits() const override { return limits_; }
  PuppetFormats& formats() override { return formats_; }
  absl::StatusOr<int64_t> Check(const Request& request) const override;
  // The request keeps its prompt as it came, for the test to look at.
  absl::StatusOr<PreparedRequest> Prepare(Request request) const override;
  absl::StatusOr<uint64_t> Submit(PreparedRequest request,
                                  std::shared_ptr<EventSink> sink) override;
  absl::StatusOr<uint64_t> SubmitPass(Pass pass, std::shared_ptr<PassSink> sink) override;
  // Makes one id per byte, 3 + the byte, after the beginning of text.
  absl::StatusOr<std::vector<int32_t>> Tokenize(std::string_view text) const override;
  absl::StatusOr<Detokenized> Detokenize(std::span<const int32_t> ids,
                                         bool special_tokens) const override;
  void Cancel(uint64_t handle) override;
  void Drain(Clock::time_point deadline) override;
  EngineSnapshot Snapshot() const override;
  std::vector<TenantQueue> Tenants() const override;
  void SetTenants(std::vector<TenantQueue> tenants);

 private:
  EngineInfo info_;
  bool in_reasoning_ = false;
  const Limits limits_;
  PuppetFormats formats_;
  mutable std::atomic<int64_t> tokenized_bytes_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::vector<absl::Status> refusals_;
  std::vector<std::shared_ptr<PuppetCall>> calls_;
  size_t taken_ = 0;
  std::vector<std::shared_ptr<PuppetPass>> passes_;
  size_t taken_passes_ = 0;
  uint64_t last_handle_ = 0;
  std::vector<uint64_t> cancelled_;
  EngineSnapshot snapshot_;
  std::vector<TenantQueue> tenants_;
  int submissions_ = 0;
  bool draining_ = false;
};

}  // namespace eta::testing
