// One SubscribeKvEvents call of vllm.grpc.engine: what the prefix cache holds, and then what it
// stores and removes, until the gateway leaves, the server ends or the credential is no longer
// good. It shows the tokens of all tenants, and so wants the role route: without it
// PERMISSION_DENIED (ROLE_REQUIRED), or UNIMPLEMENTED for callers that show no credential.
//
// A gateway that reads more slowly than the cache changes is let go. When it comes again and asks
// for a number that is not kept any more, it is told that all is cleared, and what is there.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "engine/batching/kv_events/kv_event_feed.h"
#include "service/calls/stream_reactor.h"
#include "service/identity/identity.h"
#include "smg/grpc/common/common.pb.h"

namespace eta {

namespace events_pb = ::smg::grpc::common;

// As gateways have it: each event has the number of its batch.
events_pb::KvEventBatch ToMessage(const KvEventBatch& batch);

class VllmEvents final : public StreamReactor<events_pb::KvEventBatch> {
 public:
  // Begins the call. `service` must outlive it. `on_done` runs once, last of all, when gRPC has let
  // go of the call.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& message,
                                                           const ServiceContext& service,
                                                           std::function<void()> on_done);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;

 private:
  VllmEvents(grpc::CallbackServerContext* context, const ServiceContext& service,
             std::function<void()> on_done);

  absl::Status AdmitRouter();
  absl::Status Begin(const grpc::ByteBuffer& message) EXCLUDES(mutex_);
  // Enqueues what is there, as far as it has room.
  void Pull() EXCLUDES(mutex_);
  absl::Status PullSome() EXCLUDES(mutex_);
  // The first of several ends counts.
  void EndOnce(const absl::Status& status) EXCLUDES(mutex_);
  bool Merge(events_pb::KvEventBatch& /*last*/,
             const events_pb::KvEventBatch& /*next*/) const override {
    return false;
  }

  const ServiceContext& service_;
  KeptShown shown_;
  Mutex mutex_;
  std::unique_ptr<KvEventSubscription> subscription_ GUARDED_BY(mutex_);  // null: it has ended
  std::atomic<bool> ended_ = false;
};

}  // namespace eta
