#include "service/calls/records/call_track.h"

#include "service/wire/grpc_status.h"

namespace eta {
namespace {

// A trace that begins here and is not sampled would be known to nobody: that call has none.
std::optional<TraceContext> TraceOf(const grpc::ServerContextBase& context,
                                    const ServerOptions& options) {
  auto trace = TraceContextOf(context);
  if (trace || options.otlp_endpoint.empty()) return trace;
  trace = NewTrace(options.otlp_sampling);
  return trace->sampled ? trace : std::nullopt;
}

}  // namespace

CallTrack::CallTrack(const grpc::ServerContextBase& context, std::string_view method,
                     const ServerOptions& options, CallObserver& observer)
    : observer_(observer), trace_(TraceOf(context, options)) {
  record_.method = method;
  record_.peer = context.peer();
  if (!trace_) return;
  record_.trace_id = trace_->trace_id;
  record_.parent_span_id = trace_->parent_id;
  record_.span_id = NewSpanId();
  record_.sampled = trace_->sampled;
  record_.trace_state = trace_->state;
}

std::optional<std::string> CallTrack::AnsweredParent() const {
  if (!trace_) return std::nullopt;
  return trace_->ParentOf(record_.span_id);
}

void CallTrack::End(const absl::Status& status) {
  record_.status = status;
  record_.reason = ReasonOf(status);
  record_.duration = Clock::now() - arrival_;
  observer_.OnCallEnd(record_);
}

}  // namespace eta
