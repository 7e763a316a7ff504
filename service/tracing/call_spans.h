// The spans of a finished call: one of kind SERVER, and of a Generate call that reached the engine
// its children queue, prefill and decode, as far as it came.
//
// Names are OpenTelemetry's semantic conventions for RPC and gRPC
// (https://opentelemetry.io/docs/specs/semconv/rpc/) and for generative AI
// (https://github.com/open-telemetry/semantic-conventions-genai). What they do not know begins with
// `eta.`. Names, codes and numbers only: no text of a prompt or an answer stands in a CallRecord.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "opentelemetry/proto/collector/trace/v1/trace_service.pb.h"
#include "service/telemetry/call_record.h"

namespace eta {

namespace otlp = opentelemetry::proto;

// A call as it was when it ended.
struct TracedCall {
  CallRecord record;  // it has a trace
  std::chrono::system_clock::time_point end;
};

// Of a call with that record.
int SpanCount(const CallRecord& record);

// Whose spans they are.
struct SpanSource {
  std::string model;  // the served one's name
  std::string version;
  std::string instance;  // unlike that of any other process
};

// Writes spans as messages. Thread-safe.
class SpanWriter {
 public:
  explicit SpanWriter(SpanSource source) : source_(std::move(source)) {}

  // A message to which spans can be added.
  otlp::collector::trace::v1::ExportTraceServiceRequest NewBatch() const;
  // Adds a call's, parents first.
  void Add(const TracedCall& call,
           otlp::collector::trace::v1::ExportTraceServiceRequest& batch) const;

 private:
  void AddAttributes(const CallRecord& record, otlp::trace::v1::Span& span) const;

  const SpanSource source_;
};

}  // namespace eta
