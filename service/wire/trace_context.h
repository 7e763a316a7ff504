// The trace that a call belongs to: W3C Trace Context, https://www.w3.org/TR/trace-context/, as
// metadata. It is read, logged and answered.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grpcpp/server_context.h"

namespace eta {

inline constexpr char kTraceParentKey[] = "traceparent";
inline constexpr char kTraceStateKey[] = "tracestate";

struct TraceContext {
  std::string trace_id;   // 32 lower-case hexadecimal digits
  std::string parent_id;  // 16, the caller's span; empty: the trace begins here
  bool sampled = false;
  std::string state;  // empty: none, or not valid

  // The value of `traceparent` for the span `span_id` of this trace.
  std::string ParentOf(const std::string& span_id) const;
};

// Parses all values of both keys, in their order. Absent if there is not exactly one valid
// traceparent; the specification then asks to go on without it. A version later than 00 is read as
// far as 00 goes.
std::optional<TraceContext> ParseTraceContext(const std::vector<std::string_view>& parents,
                                              const std::vector<std::string_view>& states);
std::optional<TraceContext> TraceContextOf(const grpc::ServerContextBase& context);

// A trace that begins here. `share` of them, 0 to 1, is sampled: by the trace's id, so that whoever
// samples by it too decides alike
// (https://opentelemetry.io/docs/specs/otel/trace/tracestate-probability-sampling/).
TraceContext NewTrace(double share);

// 16 hexadecimal digits, not all 0.
std::string NewSpanId();

}  // namespace eta
