#include "service/calls/records/call_track.h"

#include "service/wire/grpc_status.h"

namespace eta {

CallTrack::CallTrack(const grpc::ServerContextBase& context, std::string_view method,
                     CallObserver& observer)
    : observer_(observer), trace_(TraceContextOf(context)) {
  record_.method = method;
  record_.peer = context.peer();
  if (!trace_) return;
  record_.trace_id = trace_->trace_id;
  record_.parent_span_id = trace_->parent_id;
  record_.span_id = NewSpanId();
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
