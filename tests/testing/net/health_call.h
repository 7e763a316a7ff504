// The health service (grpc.health.v1) from the client's side.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace eta::testing {

using HealthStatus = grpc::health::v1::HealthCheckResponse;

// The status of a service; nullopt if the health service does not answer or does not know the name.
inline std::optional<HealthStatus::ServingStatus> CheckHealth(
    const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  HealthStatus response;
  const auto stub = grpc::health::v1::Health::NewStub(channel);
  if (!stub->Check(&context, request, &response).ok()) return std::nullopt;
  return response.status();
}

// Receives every change of a service's status.
class HealthListener {
 public:
  HealthListener(const std::shared_ptr<grpc::Channel>& channel, const std::string& service)
      : stub_(grpc::health::v1::Health::NewStub(channel)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    reader_ = stub_->Watch(&context_, request);
  }
  ~HealthListener() {
    context_.TryCancel();
    reader_->Finish();
  }

  // The next status; nullopt if there are no more, or two minutes after the beginning.
  std::optional<HealthStatus::ServingStatus> Next() {
    HealthStatus response;
    if (!reader_->Read(&response)) return std::nullopt;
    return response.status();
  }

 private:
  const std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<HealthStatus>> reader_;
};

}  // namespace eta::testing
