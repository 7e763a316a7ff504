#include "service/stats/stats_service.h"

#include <optional>
#include <string>

#include "service/calls/unary_call.h"
#include "service/stats/take_stats.h"
#include "service/stats/watch_stats_reactor.h"

namespace eta {

grpc::ServerUnaryReactor* StatsService::GetStats(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  return UnaryCall<v1::GetStatsRequest, v1::Stats>::Start(
      context, *request, response, service_,
      {.name = "GetStats",
       .needed = kStatsRoles,
       .max_bytes = static_cast<size_t>(service_.options.max_message_bytes),
       .admission = Admission::kAlways},
      [this](const Caller& caller, const v1::GetStatsRequest& parsed,
             CallRecord&) -> absl::StatusOr<v1::Stats> {
        const auto query =
            MakeStatsQuery(parsed.has_tenant() ? std::optional(parsed.tenant()) : std::nullopt,
                           parsed.layers(), caller);
        if (!query.ok()) return query.status();
        return TakeStats(*query, service_);
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StatsService::WatchStats(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* message) {
  service_.live_calls.Begin();
  return WatchStatsReactor::Start(context, *message, service_, watchers_,
                                  [&live_calls = service_.live_calls] { live_calls.End(); });
}

}  // namespace eta
