// A collector that takes spans by OTLP over gRPC. How answers are read:
// https://opentelemetry.io/docs/specs/otlp/.
#pragma once

#include <memory>
#include <string>

#include "engine/base/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/status.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"
#include "service/options/server_options.h"
#include "service/tracing/span_sender.h"

namespace eta {

// What a call's end says of its batch.
SendOutcome OutcomeOf(
    const grpc::Status& status,
    const opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse& response);

class OtlpChannel final : public SpanSender {
 public:
  // To options.otlp_endpoint, which was checked. Connects with the first batch. By TLS it believes
  // the certificates of the host's store (gRPC: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names another).
  explicit OtlpChannel(const ServerOptions& options);

  SendOutcome Send(
      const opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest& batch,
      Clock::time_point deadline) override;
  void Cancel() override;

 private:
  using TraceService = opentelemetry::proto::collector::trace::v1::TraceService;

  void Connect();

  const std::string target_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::unique_ptr<TraceService::Stub> stub_;  // of whoever sends

  Mutex mutex_;
  grpc::ClientContext* sending_ GUARDED_BY(mutex_) = nullptr;
  bool cancelled_ GUARDED_BY(mutex_) = false;
};

}  // namespace eta
