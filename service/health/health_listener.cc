#include "service/health/health_listener.h"

#include <chrono>

#include "engine/base/status_macros.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "service/connections/handed_connections.h"
#include "service/health/without_reflection.h"

namespace eta {
namespace {

constexpr int kMaxMessageBytes = 4096;
constexpr int kMaxMetadataBytes = 4096;
constexpr int kMaxStreams = 16;
constexpr int kMaxIdleMs = 60'000;
constexpr int kHandshakeMs = 5000;

}  // namespace

HealthListener::HealthListener(const std::string& address, Log& log)
    : acceptor_({.listen = {.address = address}, .max_connections = kMaxConnections}, log) {}

absl::Status HealthListener::Start() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder.SetOption(std::make_unique<WithoutReflection>());
  // gRPC starts no server without a service of the application's.
  builder.RegisterCallbackGenericService(&others_);
  const auto hand = HandedConnections(builder, grpc::InsecureServerCredentials());
  if (absl::Status status = acceptor_.Listen(); !status.ok()) {
    return absl::UnavailableError(
        "--health_listen: cannot listen there; is the address of this "
        "host, and free?");
  }
  RETURN_IF_ERROR(relay_.Start());
  server_ = builder.BuildAndStart();
  if (!server_) return absl::UnavailableError("the gRPC server of health does not start");
  acceptor_.Begin([this, hand](int fd) {
    Descriptor end = relay_.Add(Descriptor(fd));
    if (end.valid()) hand(end.Release());
  });
  return absl::OkStatus();
}

grpc::HealthCheckServiceInterface* HealthListener::health() {
  return server_ ? server_->GetHealthCheckService() : nullptr;
}

void HealthListener::Stop() {
  acceptor_.Stop();
  if (server_) server_->Shutdown(std::chrono::system_clock::now());
  relay_.Stop();
}

}  // namespace eta
