#include "service/server/vllm_listener.h"

#include <chrono>
#include <utility>

#include "engine/base/status_macros.h"
#include "grpcpp/server_builder.h"
#include "service/connections/handed_connections.h"
#include "service/health/without_reflection.h"
#include "service/identity/identity.h"
#include "service/server/transport.h"

namespace eta {
namespace {

Acceptor::Options OptionsAt(const std::string& address, const ServerOptions& options) {
  Acceptor::Options at = AcceptorOptions(options);
  at.listen.address = address;
  return at;
}

ServiceContext WithUnnamed(const ServiceContext& service, const Caller& unnamed) {
  ServiceContext with = service;
  with.unnamed = &unnamed;
  return with;
}

// Without a file of callers all have all roles, as at the main listener.
Caller UnnamedCaller(const ServiceContext& service) {
  Caller caller{.tenant = *Tenant::Parse(service.options.vllm_tenant),
                .roles = Roles::All(),
                .credential = "listener"};
  if (service.identity.file() == nullptr) return caller;
  caller.roles = {Role::kGenerate};
  if (service.options.vllm_route) caller.roles.Add(Role::kRoute);
  return caller;
}

}  // namespace

VllmListener::VllmListener(const VllmListen& listen, const ServiceContext& service, Log& log)
    : unnamed_(UnnamedCaller(service)),
      service_(WithUnnamed(service, unnamed_)),
      vllm_(service_, listen.name, listen.attention),
      local_(IsLocalAddress(listen.address)),
      acceptor_(OptionsAt(listen.address, service.options), log) {}

absl::Status VllmListener::Start(std::shared_ptr<grpc::ServerCredentials> credentials) {
  if (local_) credentials = grpc::InsecureServerCredentials();
  vllm_.OfferTokenizer();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  ConfigureTransport(service_.options, service_.engine.limits(), /*has_store=*/false, builder);
  builder.SetOption(std::make_unique<WithoutReflection>());
  builder.RegisterService(&vllm_);
  auto hand = HandedConnections(builder, std::move(credentials));
  if (!acceptor_.Listen().ok()) {
    return absl::UnavailableError(
        "--vllm_listen: cannot listen there; is the address of this host, and free?");
  }
  server_ = builder.BuildAndStart();
  if (!server_) return absl::UnavailableError("the gRPC server for gateways does not start");
  acceptor_.Begin(std::move(hand));
  return absl::OkStatus();
}

grpc::HealthCheckServiceInterface* VllmListener::health() {
  return server_ ? server_->GetHealthCheckService() : nullptr;
}

void VllmListener::Stop(std::chrono::milliseconds grace) {
  acceptor_.Stop();  // first: gRPC loses what it is handed once it shuts down
  if (server_) server_->Shutdown(std::chrono::system_clock::now() + grace);
}

}  // namespace eta
