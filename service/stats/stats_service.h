// The service of proto/eta/v1/stats.proto. Its methods are taken in every state of the server, also
// while it drains or is short of memory: that is when they are needed. Methods take raw bytes, as
// EtaService's do.
#pragma once

#include "eta/v1/stats.grpc.pb.h"
#include "service/calls/service_context.h"
#include "service/stats/stats_watchers.h"

namespace eta {

class StatsService final
    : public v1::StatsService::WithRawCallbackMethod_GetStats<
          v1::StatsService::WithRawCallbackMethod_WatchStats<v1::StatsService::Service>> {
 public:
  // `service` must outlive every call.
  explicit StatsService(const ServiceContext& service) : service_(service) {}

  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchStats(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* message) override;

  // Ends every WatchStats call with UNAVAILABLE (DRAINING); new ones are refused so.
  void Close() { watchers_.Close(); }
  // Calls of WatchStats.
  int watching() const { return watchers_.watching(); }

 private:
  const ServiceContext& service_;
  StatsWatchers watchers_;
};

}  // namespace eta
