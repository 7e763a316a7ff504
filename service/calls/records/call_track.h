// One call from its arrival to its end: its record, and that the observer gets it exactly once.
// Not thread-safe: whoever holds the call's next step holds this.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "service/options/server_options.h"
#include "service/telemetry/call_record.h"
#include "service/wire/trace_context.h"

namespace eta {

class CallTrack {
 public:
  // `method` is a literal. Where spans are sent (--otlp_endpoint), a call without a trace may begin
  // one.
  CallTrack(const grpc::ServerContextBase& context, std::string_view method,
            const ServerOptions& options, CallObserver& observer);

  CallRecord& record() { return record_; }
  const CallRecord& record() const { return record_; }

  // Value of `traceparent` in the answer; absent: the call has no trace.
  std::optional<std::string> AnsweredParent() const;

  // Before the client can see the status. Call once, last.
  void End(const absl::Status& status);

 private:
  CallObserver& observer_;
  const Clock::time_point arrival_ = Clock::now();
  const std::optional<TraceContext> trace_;
  CallRecord record_;
};

}  // namespace eta
