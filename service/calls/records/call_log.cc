#include "service/calls/records/call_log.h"

#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/request/answers/format_validation.h"
#include "service/telemetry/call_end.h"
#include "service/wire/grpc_status.h"

namespace eta {
namespace {

double Milliseconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// A defect or a damage of the server's own; whatever else ends a call is part of serving.
LogLevel LevelOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      return LogLevel::kError;
    default:
      return LogLevel::kInfo;
  }
}

void AddError(const CallRecord& record, LogEvent& event) {
  if (record.status.ok()) return;
  ErrorDetail detail = GetErrorDetail(record.status);
  event.Add("reason", record.reason)
      .Add("error", std::string(record.status.message()))
      .Add("field", std::move(detail.field));
  if (!detail.metadata.empty()) event.Add("details", std::move(detail.metadata));
}

void AddOutcome(const CallRecord& record, LogEvent& event) {
  const FinishedEvent& outcome = record.outcome;
  if (record.status.ok()) event.Add("finish_reason", FinishReasonOf(record));
  event.Add("prompt_tokens", outcome.prompt_tokens)
      .Add("cached_tokens", outcome.cached_tokens)
      .Add("output_tokens", outcome.output_tokens)
      .Add("preemptions", outcome.preemptions)
      .Add("queue_ms", Milliseconds(outcome.timing.queue))
      .Add("prefill_ms", Milliseconds(outcome.timing.prefill))
      .Add("first_token_ms", Milliseconds(outcome.timing.first_token))
      .Add("decode_ms", Milliseconds(outcome.timing.decode));
  if (outcome.drafts.drafted > 0) {
    event.Add("drafted_tokens", outcome.drafts.drafted)
        .Add("accepted_tokens", outcome.drafts.accepted)
        .Add("steps_saved", outcome.drafts.steps_saved);
  }
  const AttentionSums& attention = outcome.attention;
  if (attention.fallback_rows > 0) {
    event.Add("fallback_rows", attention.fallback_rows)
        .Add("fallback_kv_bytes_read", attention.fallback_kv_bytes_read);
  }
  if (attention.decode_rows == 0) return;  // then there are no densities
  event.Add("decode_rows", attention.decode_rows)
      .Add("head_density", attention.head_density())
      .Add("union_density", attention.union_density())
      .Add("kv_bytes_read", attention.kv_bytes_read)
      .Add("kv_bytes_dense", attention.kv_bytes_dense)
      .Add("index_bytes_read", attention.index_bytes_read);
}

void AddFormat(const CallRecord& record, LogEvent& event) {
  if (!record.format) return;
  event.Add("format", Name(record.format->kind));
  if (record.format->compile) event.Add("compile_ms", Milliseconds(*record.format->compile));
}

std::string Reference(const CallRecord& record) {
  if (record.profile_version == 0) return record.profile;
  return record.profile + "@" + std::to_string(record.profile_version);
}

}  // namespace

void CallLog::OnCallEnd(const CallRecord& record) {
  const LogLevel level = LevelOf(record.status.code());
  if (!log_.Writes(level)) return;
  LogEvent event(level, "call_end");
  event.Add("method", record.method)
      .Add("code", absl::StatusCodeToString(record.status.code()))
      .Add("request_id", record.request_id)
      .Add("tenant", record.tenant)
      .Add("credential", record.credential)
      .Add("trace_id", record.trace_id)
      .Add("span_id", record.span_id)
      .Add("parent_span_id", record.parent_span_id)
      .Add("trace_state", record.trace_state)
      .Add("duration_ms", Milliseconds(record.duration));
  if (record.resolved) event.Add("mode", Name(record.mode));
  event.Add("profile", Reference(record));
  if (record.default_profile) event.Add("default_profile", Name(*record.default_profile));
  AddFormat(record, event);
  AddError(record, event);
  if (record.submitted) AddOutcome(record, event);
  log_.Write(std::move(event));
}

}  // namespace eta
