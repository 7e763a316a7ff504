// lint: untrusted-input
#include "service/tracing/otlp_channel.h"

#include <algorithm>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace eta {
namespace {

using opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;
using opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse;
using std::chrono::milliseconds;

constexpr int kMaxAnswerBytes = 64 * 1024;
constexpr int kFirstReconnectMs = 500;
constexpr int kLastReconnectMs = 5000;  // gRPC's own is two minutes
constexpr milliseconds kLongestWait{30'000};

std::optional<milliseconds> RetryAfter(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  for (const google::protobuf::Any& detail : details.details()) {
    google::rpc::RetryInfo retry;
    if (!detail.Is<google::rpc::RetryInfo>() || !detail.UnpackTo(&retry)) continue;
    const int64_t seconds = std::clamp<int64_t>(retry.retry_delay().seconds(), 0, 3600);
    const int64_t nanos = std::clamp<int64_t>(retry.retry_delay().nanos(), 0, 999'999'999);
    const auto delay = std::chrono::seconds(seconds) +
                       std::chrono::ceil<milliseconds>(std::chrono::nanoseconds(nanos));
    return std::min<milliseconds>(delay, kLongestWait);
  }
  return std::nullopt;
}

// As the protocol lists them; RESOURCE_EXHAUSTED where the collector says when.
bool MayTryAgain(const grpc::Status& status, bool has_delay) {
  switch (status.error_code()) {
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::OUT_OF_RANGE:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DATA_LOSS:
      return true;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return has_delay;
    default:
      return false;
  }
}

}  // namespace

SendOutcome OutcomeOf(const grpc::Status& status, const ExportTraceServiceResponse& response) {
  if (status.ok()) {
    const auto& partial = response.partial_success();
    return {.rejected = partial.rejected_spans(), .error = partial.error_message()};
  }
  SendOutcome outcome{.error = status.error_message(), .retry_after = RetryAfter(status)};
  outcome.kind = MayTryAgain(status, outcome.retry_after.has_value()) ? SendOutcome::Kind::kTryAgain
                                                                      : SendOutcome::Kind::kRefused;
  return outcome;
}

OtlpChannel::OtlpChannel(const ServerOptions& options)
    : target_("dns:///" + OtlpAddress(options)),  // else a host may read as a scheme
      credentials_(OtlpByTls(options) ? grpc::SslCredentials({})
                                      : grpc::InsecureChannelCredentials()) {
  Connect();
}

void OtlpChannel::Connect() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLastReconnectMs);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // that is the exporter's
  arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
  arguments.SetUserAgentPrefix("eta-server/" ETA_VERSION);
  stub_ = TraceService::NewStub(grpc::CreateCustomChannel(target_, credentials_, arguments));
}

SendOutcome OtlpChannel::Send(const ExportTraceServiceRequest& batch, Clock::time_point deadline) {
  grpc::ClientContext context;
  context.set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline - Clock::now()));
  {
    const MutexLock lock(mutex_);
    if (cancelled_) {
      return {.kind = SendOutcome::Kind::kTryAgain, .error = "the server ends"};
    }
    sending_ = &context;
  }
  ExportTraceServiceResponse response;
  const grpc::Status status = stub_->Export(&context, batch, &response);
  {
    const MutexLock lock(mutex_);
    sending_ = nullptr;
  }
  // A peer that went without a word leaves a connection that nobody answers for a quarter of an
  // hour.
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) Connect();
  return OutcomeOf(status, response);
}

void OtlpChannel::Cancel() {
  const MutexLock lock(mutex_);
  cancelled_ = true;
  if (sending_ != nullptr) sending_->TryCancel();
}

}  // namespace eta
