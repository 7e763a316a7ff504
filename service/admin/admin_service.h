// The service of proto/eta/v1/admin.proto. Holds no state; methods take raw bytes, as EtaService's
// do.
#pragma once

#include "eta/v1/admin.grpc.pb.h"
#include "service/calls/service_context.h"
#include "service/identity/caller.h"
#include "service/log/log.h"

namespace eta {

class AdminService final
    : public v1::AdminService::WithRawCallbackMethod_SetLogLevel<v1::AdminService::Service> {
 public:
  // Both must outlive every call.
  AdminService(const ServiceContext& service, Log& log) : service_(service), log_(log) {}

  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;

 private:
  absl::StatusOr<v1::SetLogLevelResponse> Set(const Caller& caller,
                                              const v1::SetLogLevelRequest& request) const;

  const ServiceContext& service_;
  Log& log_;
};

}  // namespace eta
