#include "service/eta_service.h"

#include "service/calibrate/calibrate_reactor.h"
#include "service/generate/generate_reactor.h"

namespace eta {

grpc::ServerWriteReactor<grpc::ByteBuffer>* EtaService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* message) {
  service_.live_calls.Begin();
  return GenerateReactor::Start(context, *message, service_,
                                [&live_calls = service_.live_calls] { live_calls.End(); });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* EtaService::Calibrate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* message) {
  service_.live_calls.Begin();
  return CalibrateReactor::Start(context, *message, service_,
                                 [&live_calls = service_.live_calls] { live_calls.End(); });
}

}  // namespace eta
