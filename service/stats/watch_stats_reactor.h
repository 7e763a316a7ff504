// One WatchStats call: a snapshot whenever one is due, until the client leaves, the server ends or
// the credential is no longer good. The credential is checked before each snapshot. Only the newest
// snapshot waits for a slow reader. A reader that takes none for --slow_reader_timeout is cut off.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "eta/v1/stats.pb.h"
#include "service/calls/stream_reactor.h"
#include "service/identity/identity.h"
#include "service/stats/stats_query.h"
#include "service/stats/stats_watchers.h"

namespace eta {

class WatchStatsReactor final : public StreamReactor<v1::Stats>, public StatsWatcher {
 public:
  // Begins the call. `watchers` must outlive it. `on_done` runs once, last of all, when gRPC has
  // let go of the call.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& message,
                                                           const ServiceContext& service,
                                                           StatsWatchers& watchers,
                                                           std::function<void()> on_done);

  // StatsWatcher.
  void OnDue() override;
  void OnEnd(const absl::Status& status) override;

  void OnCancel() override;

 private:
  WatchStatsReactor(grpc::CallbackServerContext* context, const ServiceContext& service,
                    StatsWatchers& watchers, std::function<void()> on_done);

  absl::Status Begin(const grpc::ByteBuffer& message);
  absl::Status MakeQuery(const Caller& caller);
  absl::Status CheckStillAllowed();
  // The first of several ends counts.
  void EndOnce(const absl::Status& status);
  bool Merge(v1::Stats& last, const v1::Stats& next) const override;

  const ServiceContext& service_;
  StatsWatchers& watchers_;
  KeptShown shown_;
  v1::WatchStatsRequest request_;
  StatusQuery query_;  // what the caller may see of it
  std::atomic<bool> ended_ = false;
};

}  // namespace eta
