// One Generate call: turns the message into a request, submits it, and writes the engine's events
// to the client as fast as the client reads.
//
// Four kinds of threads meet here: gRPC's (start, cancel), one of the profile cache where the
// request names a profile that is not in memory, one that makes tokens of a text or chat, and the
// engine's step threads (events). Whoever has the next of these to do keeps the object alive.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "engine/base/lease.h"
#include "engine/base/mutex.h"
#include "engine/front/engine.h"
#include "eta/v1/generate.pb.h"
#include "service/calls/service_context.h"
#include "service/calls/stream_reactor.h"

namespace eta {

class GenerateReactor final : public StreamReactor<v1::GenerateResponse>,
                              public EventSink,
                              public LiveStream {
 public:
  // Begins the call. `on_done` runs once, last of all, when gRPC has let go of the call.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& message,
                                                           const ServiceContext& service,
                                                           std::function<void()> on_done);

  // EventSink, on the engine's step thread.
  void OnStarted(StartedEvent event) override;
  void OnPrefill(PrefillEvent event) override;
  void OnDelta(DeltaEvent event) override;
  void OnFinished(FinishedEvent event) override;
  void OnFailed(absl::Status status, FinishedEvent so_far) override;
  bool Congested() const override { return Full(); }

  void OnCancel() override;

  // LiveStream. The tokens are those of the prompt, once it runs, and one for each delta.
  int64_t kv_tokens() const override { return ends_for_memory_ ? 0 : kv_tokens_.load(); }
  void EndForMemory() override;

 private:
  GenerateReactor(grpc::CallbackServerContext* context, const ServiceContext& service,
                  std::function<void()> on_done);
  std::shared_ptr<GenerateReactor> Self();

  absl::Status Begin(const grpc::ByteBuffer& message);
  absl::Status ResolveProfile(const Tenant& tenant, const v1::Attention& attention);
  absl::Status ResolveNamed(const Tenant& tenant, const std::string& reference);
  absl::Status ResolveDefault(const Tenant& tenant, const std::string& reference);
  absl::Status SubmitWith(std::shared_ptr<const ThresholdProfile> profile);
  // Checks and pays for the request and goes on to Queue, a text's or chat's on another thread.
  absl::Status Submit();
  absl::Status AwaitTokenizer();
  // Makes tokens of the prompt, pays for them and queues the request.
  absl::Status Queue();
  void BeginWait();
  // Whether it waited; it does not any more. Whoever is told so goes on with it.
  bool EndWait();
  void Cancel();
  // Why it ends, cancelled: that its deadline has passed, as the engine would say, or `status`.
  absl::Status DeadlineOr(absl::Status status) const;
  // The tokens that the call is charged: of the prompt those that were computed, once it ran, and
  // those that were generated; at least what making tokens of its text costs.
  int64_t Used(const FinishedEvent& outcome) const;
  bool Merge(v1::GenerateResponse& last, const v1::GenerateResponse& next) const override;

  const ServiceContext& service_;
  Request request_;  // until it is submitted
  const Clock::time_point arrival_ = Clock::now();
  int64_t text_cost_ = 0;                             // tokens
  std::optional<DefaultProfileUse> default_profile_;  // before it is submitted
  Lease place_;                                       // among the live streams
  std::atomic<int64_t> kv_tokens_ = 0;
  std::atomic<bool> ends_for_memory_ = false;
  std::atomic<bool> deadline_passed_ = false;

  Mutex mutex_;
  bool waits_ GUARDED_BY(mutex_) = false;  // for its profile, or for who makes tokens of its text
  bool cancelled_ GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> handle_ GUARDED_BY(mutex_);
};

}  // namespace eta
