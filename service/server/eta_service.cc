#include "service/server/eta_service.h"

#include <optional>
#include <string>

#include "engine/base/status_macros.h"
#include "engine/request/request_validation.h"
#include "service/calibrate/calibrate_reactor.h"
#include "service/calibrate/calibrations.h"
#include "service/calls/admission.h"
#include "service/calls/unary_call.h"
#include "service/generate/generate_reactor.h"
#include "service/generate/tokenize.h"
#include "service/stats/convert_stats.h"
#include "service/stats/stats_query.h"
#include "service/stats/watch_stats_reactor.h"

namespace eta {

grpc::ServerWriteReactor<grpc::ByteBuffer>* EtaService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* message) {
  service_.live_calls.Begin();
  return GenerateReactor::Start(context, *message, service_,
                                [&live_calls = service_.live_calls] { live_calls.End(); });
}

grpc::ServerUnaryReactor* EtaService::Tokenize(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return UnaryCall<v1::TokenizeRequest, v1::TokenizeResponse>::Start(
      context, *request, response, service_,
      {.name = "Tokenize",
       .needed = {Role::kGenerate},
       .max_bytes = static_cast<size_t>(service_.options.max_message_bytes),
       .of_text = true},
      [this](const Caller&, const v1::TokenizeRequest& parsed,
             CallRecord&) -> absl::StatusOr<v1::TokenizeResponse> {
        if (parsed.has_model()) {
          RETURN_IF_ERROR(CheckModel(parsed.model(), service_.engine.info().model_name));
        }
        return eta::Tokenize(parsed, service_.engine);
      },
      TokenizeCost);
}

grpc::ServerUnaryReactor* EtaService::Detokenize(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  return UnaryCall<v1::DetokenizeRequest, v1::DetokenizeResponse>::Start(
      context, *request, response, service_,
      {.name = "Detokenize",
       .needed = {Role::kGenerate},
       .max_bytes = static_cast<size_t>(service_.options.max_message_bytes),
       .of_text = true},
      [this](const Caller&, const v1::DetokenizeRequest& parsed,
             CallRecord&) -> absl::StatusOr<v1::DetokenizeResponse> {
        if (parsed.has_model()) {
          RETURN_IF_ERROR(CheckModel(parsed.model(), service_.engine.info().model_name));
        }
        return eta::Detokenize(parsed, service_.engine);
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* EtaService::Calibrate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* message) {
  service_.live_calls.Begin();
  return CalibrateReactor::Start(context, *message, service_,
                                 [&live_calls = service_.live_calls] { live_calls.End(); });
}

grpc::ServerUnaryReactor* EtaService::CancelCalibration(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  return UnaryCall<v1::CancelCalibrationRequest, v1::CancelCalibrationResponse>::Start(
      context, *request, response, service_,
      {.name = "CancelCalibration",
       .needed = {Role::kCalibrate},
       .max_bytes = static_cast<size_t>(service_.options.max_message_bytes),
       .admission = Admission::kAlways},
      [this](const Caller& caller, const v1::CancelCalibrationRequest& parsed,
             CallRecord& record) -> absl::StatusOr<v1::CancelCalibrationResponse> {
        RETURN_IF_ERROR(CheckRequestId("request_id", parsed.request_id()));
        record.request_id = parsed.request_id();
        RETURN_IF_ERROR(service_.calibrations.Cancel(caller.tenant, parsed.request_id()));
        return v1::CancelCalibrationResponse();
      });
}

grpc::ServerUnaryReactor* EtaService::Stats(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) {
  return UnaryCall<v1::StatsRequest, v1::Stats>::Start(
      context, *request, response, service_,
      {.name = "Stats",
       .needed = kStatsRoles,
       .max_bytes = static_cast<size_t>(service_.options.max_message_bytes),
       .admission = Admission::kAlways},
      [this](const Caller& caller, const v1::StatsRequest& parsed,
             CallRecord&) -> absl::StatusOr<v1::Stats> {
        ASSIGN_OR_RETURN(
            const auto query,
            MakeStatsQuery(parsed.has_tenant() ? std::optional(parsed.tenant()) : std::nullopt,
                           parsed.layers(), caller));
        return ToMessage(ReadServerStatus(query, service_));
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* EtaService::WatchStats(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* message) {
  service_.live_calls.Begin();
  return WatchStatsReactor::Start(context, *message, service_, watchers_,
                                  [&live_calls = service_.live_calls] { live_calls.End(); });
}

}  // namespace eta
