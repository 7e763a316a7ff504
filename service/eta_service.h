// The service of proto/eta/v1/service.proto. Holds no state; every call is a reactor of its own.
// Methods take raw bytes, so that a message which does not parse is answered by us
// (INVALID_ARGUMENT) and not by the library.
#pragma once

#include "eta/v1/service.grpc.pb.h"
#include "service/calls/service_context.h"

namespace eta {

class EtaService final
    : public v1::EtaService::WithRawCallbackMethod_Generate<
          v1::EtaService::WithRawCallbackMethod_Calibrate<v1::EtaService::Service>> {
 public:
  // `service` must outlive every call.
  explicit EtaService(const ServiceContext& service) : service_(service) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* message) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Calibrate(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* message) override;

 private:
  const ServiceContext& service_;
};

}  // namespace eta
