// One listener for gateways (--vllm_listen): a gRPC server of its own that answers
// vllm.grpc.engine.VllmEngine and health under one name of the model, so that eta.v1 cannot be
// reached there. What other hosts can reach speaks the server's TLS; what only this host can is
// plaintext, since gateways beside a server have no certificate.
//
// A gateway sends no credential. So whoever shows none there is the caller that the operator named.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "service/calls/service_context.h"
#include "service/connections/acceptor.h"
#include "service/identity/caller.h"
#include "service/log/log.h"
#include "service/options/vllm_listen.h"
#include "service/vllm/vllm_service.h"

namespace eta {

class VllmListener {
 public:
  // `service` and `log` must outlive it.
  VllmListener(const VllmListen& listen, const ServiceContext& service, Log& log);
  ~VllmListener() { Stop(std::chrono::milliseconds(0)); }
  VllmListener(const VllmListener&) = delete;
  VllmListener& operator=(const VllmListener&) = delete;

  // `credentials`: of the server. UNAVAILABLE, naming the flag.
  absl::Status Start(std::shared_ptr<grpc::ServerCredentials> credentials);
  // Null before Start.
  grpc::HealthCheckServiceInterface* health();
  const std::string& address() const { return acceptor_.address(); }
  void Stop(std::chrono::milliseconds grace);

 private:
  const Caller unnamed_;
  ServiceContext service_;
  VllmService vllm_;
  const bool local_;
  Acceptor acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace eta
