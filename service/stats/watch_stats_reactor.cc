#include "service/stats/watch_stats_reactor.h"

#include <optional>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "service/calls/admission.h"
#include "service/calls/call_identity.h"
#include "service/stats/convert_stats.h"

namespace eta {

WatchStatsReactor::WatchStatsReactor(grpc::CallbackServerContext* context,
                                     const ServiceContext& service, StatsWatchers& watchers,
                                     std::function<void()> on_done)
    : StreamReactor(context, service, "WatchStats", service.engine.limits().max_congestion,
                    std::move(on_done)),
      service_(service),
      watchers_(watchers) {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchStatsReactor::Start(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer& message,
    const ServiceContext& service, StatsWatchers& watchers, std::function<void()> on_done) {
  const std::shared_ptr<WatchStatsReactor> reactor(
      new WatchStatsReactor(context, service, watchers, std::move(on_done)));
  reactor->KeepAlive();
  const absl::Status status = reactor->Begin(message);
  if (!status.ok()) reactor->EndOnce(status);
  return reactor.get();
}

absl::Status WatchStatsReactor::Begin(const grpc::ByteBuffer& message) {
  const ServerOptions& options = service_.options;
  ASSIGN_OR_RETURN(const auto caller,
                   Admit(context(), service_, kStatsRoles, record(), Admission::kAlways));
  ASSIGN_OR_RETURN(request_,
                   ParseMessage<v1::WatchStatsRequest>(message, options.max_message_bytes));
  ASSIGN_OR_RETURN(const auto interval, ToInterval(request_));
  RETURN_IF_ERROR(MakeQuery(caller));
  shown_ = KeptShown(ShownBy(context(), service_.identity.rules().tenant_header));
  return watchers_.Add(std::static_pointer_cast<WatchStatsReactor>(shared_from_this()), interval,
                       caller.tenant);
}

absl::Status WatchStatsReactor::MakeQuery(const Caller& caller) {
  ASSIGN_OR_RETURN(query_, MakeStatsQuery(request_.has_tenant() ? std::optional(request_.tenant())
                                                                : std::nullopt,
                                          request_.layers(), caller));
  return absl::OkStatus();
}

absl::Status WatchStatsReactor::CheckStillAllowed() {
  ASSIGN_OR_RETURN(const auto caller, StillAdmitted(shown_.Get(), service_, kStatsRoles));
  return MakeQuery(caller);
}

void WatchStatsReactor::OnDue() {
  if (ended_) return;
  const absl::Status status = Stalled() ? ReadTooSlowly() : CheckStillAllowed();
  if (status.ok()) return Enqueue(ToMessage(ReadServerStatus(query_, service_)));
  watchers_.Remove(this);
  EndOnce(status);
}

void WatchStatsReactor::OnEnd(const absl::Status& status) {
  EndOnce(status);
}

void WatchStatsReactor::OnCancel() {
  StreamReactor::OnCancel();
  watchers_.Remove(this);
  EndOnce(WhyCancelled());
}

void WatchStatsReactor::EndOnce(const absl::Status& status) {
  if (!ended_.exchange(true)) End(status);
}

bool WatchStatsReactor::Merge(v1::Stats& last, const v1::Stats& next) const {
  last = next;
  return true;
}

}  // namespace eta
