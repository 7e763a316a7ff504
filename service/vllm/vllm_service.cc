#include "service/vllm/vllm_service.h"

#include <string>

#include "service/vllm/convert_vllm.h"
#include "service/vllm/vllm_answers.h"
#include "service/vllm/vllm_events.h"

namespace eta {
namespace {

namespace common_pb = ::smg::grpc::common;

}  // namespace

VllmService::VllmService(const ServiceContext& service, const std::string& model_name,
                         const AttentionName& attention)
    : service_(service),
      vllm_{.service = service,
            .model_name = model_name.empty() ? service.engine.info().model_name : model_name,
            .attention = attention,
            .requests = requests_} {}

void VllmService::OfferTokenizer() {
  const auto& files = service_.engine.info().tokenizer_files;
  tokenizer_.bundle = MakeTokenizerBundle(files != nullptr ? *files : TokenizerFiles());
}

UnaryMethod VllmService::About(std::string_view name) const {
  return {.name = name,
          .needed = {Role::kGenerate, Role::kRoute},
          .max_bytes = static_cast<size_t>(service_.options.max_message_bytes),
          .admission = Admission::kAlways,
          .service = kVllmEngine};
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* message) {
  service_.live_calls.Begin();
  return VllmGenerate::Start(context, *message, vllm_,
                             [&live_calls = service_.live_calls] { live_calls.End(); });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmService::GetTokenizer(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* /*message*/) {
  service_.live_calls.Begin();
  return TokenizerCall::Start(context, service_, tokenizer_,
                              [&live_calls = service_.live_calls] { live_calls.End(); });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmService::SubscribeKvEvents(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* message) {
  service_.live_calls.Begin();
  return VllmEvents::Start(context, *message, service_,
                           [&live_calls = service_.live_calls] { live_calls.End(); });
}

grpc::ServerUnaryReactor* VllmService::HealthCheck(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* /*request*/,
                                                   grpc::ByteBuffer* response) {
  vllm_pb::HealthCheckResponse answer;
  answer.set_healthy(service_.state.ready());
  answer.set_message(answer.healthy() ? "ready" : "not ready: the server ends, or has no device");
  SerializeMessage(answer, *response);
  auto* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* VllmService::Abort(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) {
  UnaryMethod method = About("Abort");
  method.needed = {Role::kGenerate};
  return UnaryCall<vllm_pb::AbortRequest, vllm_pb::AbortResponse>::Start(
      context, *request, response, service_, method,
      [this](const Caller& caller, const vllm_pb::AbortRequest& parsed,
             CallRecord&) -> absl::StatusOr<vllm_pb::AbortResponse> {
        for (const std::string& id : parsed.request_ids()) requests_.Abort(caller.tenant, id);
        return vllm_pb::AbortResponse();
      });
}

grpc::ServerUnaryReactor* VllmService::GetModelInfo(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  return UnaryCall<vllm_pb::GetModelInfoRequest, vllm_pb::GetModelInfoResponse>::Start(
      context, *request, response, service_, About("GetModelInfo"),
      [this](const Caller&, const vllm_pb::GetModelInfoRequest&,
             CallRecord&) -> absl::StatusOr<vllm_pb::GetModelInfoResponse> {
        return VllmModelInfo(service_.engine.info(), service_.engine.limits(), vllm_.model_name);
      });
}

grpc::ServerUnaryReactor* VllmService::GetServerInfo(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return UnaryCall<vllm_pb::GetServerInfoRequest, vllm_pb::GetServerInfoResponse>::Start(
      context, *request, response, service_, About("GetServerInfo"),
      [this](const Caller&, const vllm_pb::GetServerInfoRequest&,
             CallRecord&) -> absl::StatusOr<vllm_pb::GetServerInfoResponse> {
        return VllmServerInfo(service_.engine.info(), service_.engine.Snapshot(),
                              Clock::now() - began_);
      });
}

grpc::ServerUnaryReactor* VllmService::GetLoads(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* request,
                                                grpc::ByteBuffer* response) {
  return UnaryCall<vllm_pb::GetLoadsRequest, vllm_pb::GetLoadsResponse>::Start(
      context, *request, response, service_, About("GetLoads"),
      [this](const Caller&, const vllm_pb::GetLoadsRequest&,
             CallRecord&) -> absl::StatusOr<vllm_pb::GetLoadsResponse> {
        TelemetrySnapshot counted;
        if (service_.telemetry) counted = service_.telemetry({});
        return VllmLoads(service_.engine.info(), service_.engine.Snapshot(), counted,
                         std::chrono::system_clock::now());
      });
}

grpc::ServerUnaryReactor* VllmService::FlushCache(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* response) {
  UnaryMethod method = About("FlushCache");
  method.needed = {Role::kRoute};
  return UnaryCall<common_pb::FlushCacheRequest, common_pb::FlushCacheResponse>::Start(
      context, *request, response, service_, method,
      [this](const Caller&, const common_pb::FlushCacheRequest&,
             CallRecord&) -> absl::StatusOr<common_pb::FlushCacheResponse> {
        service_.engine.ForgetPrefixes();
        common_pb::FlushCacheResponse answer;
        answer.set_success(true);
        answer.set_message("requests from now on share nothing with those before");
        return answer;
      });
}

}  // namespace eta
