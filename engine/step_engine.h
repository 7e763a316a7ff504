// The engine on one device: a mailbox in front of the dispatcher, and the thread that empties it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/checkpoint.h"
#include "engine/dispatcher.h"
#include "engine/engine.h"
#include "engine/kv_cache.h"
#include "engine/model.h"
#include "engine/probe_run.h"
#include "engine/sequence.h"
#include "engine/tokenizer.h"

namespace eta {

class StepEngine final : public Engine {
 public:
  // Loads the model onto `backend`, reserves the KV cache and starts the step thread. Errors of
  // Model::Load and Tokenizer::Load; INVALID_ARGUMENT for options that make no sense;
  // RESOURCE_EXHAUSTED, with the bytes wanted and free, where the device's memory is too small.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        const Checkpoint& checkpoint,
                                                        std::unique_ptr<Backend> backend,
                                                        Observer* observer = nullptr);
  ~StepEngine() override;

  const EngineInfo& info() const override { return info_; }
  const Limits& limits() const override { return options_.limits; }
  absl::StatusOr<uint64_t> Submit(Request request, std::shared_ptr<EventSink> sink) override;
  absl::StatusOr<uint64_t> SubmitProbe(Probe probe, std::shared_ptr<ProbeSink> sink) override;
  absl::StatusOr<std::vector<int32_t>> Tokenize(std::string_view text) const override;
  void Cancel(uint64_t handle) override;
  void Drain(Clock::time_point deadline) override;
  EngineSnapshot Snapshot() const override;
  std::vector<TenantQueue> Tenants() const override;

 private:
  StepEngine(const EngineOptions& options, std::unique_ptr<Backend> backend, Observer* observer);
  absl::Status Load(const Checkpoint& checkpoint);
  absl::Status ReserveCache();
  absl::StatusOr<int64_t> PoolBytes(const KvGeometry& geometry) const;

  absl::Status CheckPool(int64_t tokens, const std::string& what) const;
  // Whether a request, of `tokens` prompt tokens, may join the queue.
  absl::Status CheckQueue(int64_t tokens, const Request& request) const;
  // All with mutex_ held.
  absl::Status CheckQueueLocked(int64_t tokens, const Request& request) const;
  // Those of the batcher with what is about to join it.
  std::vector<TenantQueue> TenantsLocked() const;
  // Whether somebody has more in the queue, for its weight, than the request's tenant with so much
  // more.
  bool AnotherHasMore(const Request& request, int64_t TenantQueue::*what, int64_t more) const;
  absl::Status Refusal() const;
  // An arrival that no longer counts as being made.
  void Arrived(int64_t tokens);
  bool HasProbes() const;
  bool Idle() const;
  int64_t QueuedTokens() const;
  // When what is ahead now will have been worked off.
  std::chrono::milliseconds RetryAfter() const;

  void Loop();
  // The step thread's last act when it has no memory: tells everybody, so that the process can end.
  void EndForMemory(std::vector<std::unique_ptr<Sequence>> arrivals,
                    std::vector<std::unique_ptr<ProbeRun>> probes);
  // With mutex_ held, or before the thread starts.
  void UpdateSnapshot();

  EngineOptions options_;  // its zeros replaced by what they stand for
  Observer* const observer_;
  EngineInfo info_;

  // Built by Load; used by the step thread alone, but for the tokenizer, which is stateless.
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::thread thread_;

  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::vector<std::unique_ptr<Sequence>> arrivals_;
  std::vector<std::unique_ptr<ProbeRun>> arriving_probes_;
  std::vector<uint64_t> cancelled_;
  int64_t arriving_tokens_ = 0;  // of sequences being made
  int32_t arriving_requests_ = 0;
  uint64_t last_handle_ = 0;
  bool draining_ = false;
  bool abandon_ = false;
  bool stop_ = false;
  bool device_lost_ = false;
  bool out_of_memory_ = false;
  EngineSnapshot snapshot_;
  std::vector<TenantQueue> tenants_;   // of the batcher, after its last step
  std::vector<TenantQueue> arriving_;  // one for each of arrivals_
  std::vector<TenantQueue> joining_;   // for each that came to the batcher since
  int64_t prefill_tokens_ = 0;
  double prefill_rate_ = 0.0;
};

}  // namespace eta
