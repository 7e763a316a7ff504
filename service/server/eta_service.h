// The service of proto/eta/v1/service.proto. Holds no state; every call is a reactor of its own.
// Methods take raw bytes, so that a message which does not parse is answered by us
// (INVALID_ARGUMENT) and not by the library.
//
// Stats, WatchStats and CancelCalibration are taken in every state of the server, also while it
// drains or is short of memory: that is when they are needed.
#pragma once

#include "eta/v1/service.grpc.pb.h"
#include "service/calls/service_context.h"
#include "service/stats/stats_watchers.h"

namespace eta {

class EtaService final : public v1::EtaService::WithRawCallbackMethod_Generate<
                             v1::EtaService::WithRawCallbackMethod_Tokenize<
                                 v1::EtaService::WithRawCallbackMethod_Detokenize<
                                     v1::EtaService::WithRawCallbackMethod_Calibrate<
                                         v1::EtaService::WithRawCallbackMethod_CancelCalibration<
                                             v1::EtaService::WithRawCallbackMethod_Stats<
                                                 v1::EtaService::WithRawCallbackMethod_WatchStats<
                                                     v1::EtaService::Service>>>>>>> {
 public:
  // Both must outlive every call.
  EtaService(const ServiceContext& service, StatsWatchers& watchers)
      : service_(service), watchers_(watchers) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* message) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Calibrate(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* message) override;
  grpc::ServerUnaryReactor* CancelCalibration(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchStats(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* message) override;

 private:
  const ServiceContext& service_;
  StatsWatchers& watchers_;
};

}  // namespace eta
