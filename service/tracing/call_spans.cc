#include "service/tracing/call_spans.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/utf8.h"
#include "service/telemetry/call_end.h"
#include "service/wire/trace_context.h"

namespace eta {
namespace {

using otlp::collector::trace::v1::ExportTraceServiceRequest;
using otlp::common::v1::AnyValue;
using otlp::trace::v1::ScopeSpans;
using otlp::trace::v1::Span;
using std::chrono::nanoseconds;

constexpr uint32_t kSampled = 1;
constexpr size_t kMaxTextBytes = 1024;

// A collector refuses a whole batch for one text that is not UTF-8.
std::string WellFormed(std::string_view text) {
  text = text.substr(0, kMaxTextBytes);
  return std::string(text.substr(0, FirstInvalidUtf8(text).value_or(text.size())));
}

// The number that was meant: 0.7, where 0.7f as a double is 0.699999988.
double Meant(float value) {
  double number = value;
  (void)absl::SimpleAtod(absl::StrCat(value), &number);
  return number;
}

// Adds attributes to a span or a resource. An empty text is left out.
template <typename Owner>
class Attributes {
 public:
  explicit Attributes(Owner& owner) : owner_(owner) {}

  template <typename T>
  Attributes& Add(std::string_view key, const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      New(key).set_bool_value(value);
    } else if constexpr (std::is_integral_v<T>) {
      New(key).set_int_value(value);
    } else if constexpr (std::is_floating_point_v<T>) {
      New(key).set_double_value(value);
    } else if (std::string text = WellFormed(value); !text.empty()) {
      New(key).set_string_value(std::move(text));
    }
    return *this;
  }
  // A list with one text.
  Attributes& AddList(std::string_view key, std::string_view value) {
    New(key).mutable_array_value()->add_values()->set_string_value(WellFormed(value));
    return *this;
  }

 private:
  AnyValue& New(std::string_view key) {
    auto* const attribute = owner_.add_attributes();
    attribute->set_key(std::string(key));
    return *attribute->mutable_value();
  }

  Owner& owner_;
};

// Of a server's span: what a client may be to blame for is none.
bool IsError(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

const char* OperationOf(const AskedOfModel& asked) {
  return asked.chat ? "chat" : "text_completion";
}

void AddOutcomeAttributes(const CallRecord& record, Attributes<Span>& attributes) {
  const FinishedEvent& outcome = record.outcome;
  attributes.Add("gen_ai.usage.input_tokens", outcome.prompt_tokens)
      .Add("gen_ai.usage.output_tokens", outcome.output_tokens)
      .Add("gen_ai.usage.cache_read.input_tokens", outcome.cached_tokens)
      .Add("eta.preemptions", outcome.preemptions);
  if (record.status.ok()) {
    attributes.AddList("gen_ai.response.finish_reasons", FinishReasonOf(record));
  }
  if (outcome.output_tokens > 0) {
    attributes.Add("gen_ai.response.time_to_first_chunk",
                   std::chrono::duration<double>(outcome.timing.first_token).count());
  }
  if (outcome.drafts.drafted > 0) {
    attributes.Add("eta.drafted_tokens", outcome.drafts.drafted)
        .Add("eta.accepted_tokens", outcome.drafts.accepted);
  }
  const AttentionSums& attention = outcome.attention;
  if (attention.fallback_rows > 0) attributes.Add("eta.fallback_rows", attention.fallback_rows);
  if (attention.decode_rows == 0) return;  // then there are no densities
  attributes.Add("eta.decode_rows", attention.decode_rows)
      .Add("eta.head_density", attention.head_density())
      .Add("eta.union_density", attention.union_density());
}

// The parts of a call, one behind the other from its beginning on.
struct Part {
  const char* name;
  nanoseconds begin{0};
  nanoseconds end{0};
};

// What was not over yet lasted until the call ended.
std::vector<Part> PartsOf(const CallRecord& record) {
  if (!record.submitted) return {};
  const Timing& timing = record.outcome.timing;
  const auto within = [&](nanoseconds time) { return std::min(time, record.duration); };
  const Stage stage = StageOf(record);
  if (stage == Stage::kQueued) return {{"queue", nanoseconds(0), record.duration}};
  const nanoseconds scheduled = within(timing.queue);
  std::vector<Part> parts = {{"queue", nanoseconds(0), scheduled}};
  if (stage == Stage::kPrefill) {
    parts.push_back({"prefill", scheduled, record.duration});
    return parts;
  }
  const nanoseconds first = within(timing.first_token);
  parts.push_back({"prefill", scheduled, first});
  parts.push_back({"decode", first, within(timing.first_token + timing.decode)});
  return parts;
}

}  // namespace

int SpanCount(const CallRecord& record) {
  return 1 + static_cast<int>(PartsOf(record).size());
}

ExportTraceServiceRequest SpanWriter::NewBatch() const {
  ExportTraceServiceRequest batch;
  otlp::trace::v1::ResourceSpans& spans = *batch.add_resource_spans();
  Attributes<otlp::resource::v1::Resource>(*spans.mutable_resource())
      .Add("service.name", "eta-server")
      .Add("service.version", source_.version)
      .Add("service.instance.id", source_.instance);
  otlp::common::v1::InstrumentationScope& scope = *spans.add_scope_spans()->mutable_scope();
  scope.set_name("eta-server");
  scope.set_version(source_.version);
  return batch;
}

void SpanWriter::AddAttributes(const CallRecord& record, Span& span) const {
  Attributes<Span> attributes(span);
  attributes.Add("rpc.system.name", "grpc")
      .Add("rpc.method", record.full_method())
      .Add("rpc.response.status_code", absl::StatusCodeToString(record.status.code()))
      .Add("error.type", record.reason)
      .Add("eta.request_id", record.request_id)
      .Add("eta.tenant", record.tenant)
      .Add("eta.profile.name", record.profile);
  if (record.profile_version > 0) attributes.Add("eta.profile.version", record.profile_version);
  if (record.resolved) attributes.Add("eta.attention.mode", Name(record.mode));
  if (record.default_profile) {
    attributes.Add("eta.default_profile", Name(*record.default_profile));
  }
  if (record.asked) {
    attributes.Add("gen_ai.operation.name", OperationOf(*record.asked))
        .Add("gen_ai.provider.name", "eta")
        .Add("gen_ai.request.model", source_.model)
        .Add("gen_ai.request.temperature", Meant(record.asked->temperature))
        .Add("gen_ai.request.top_p", Meant(record.asked->top_p))
        .Add("gen_ai.request.max_tokens", record.asked->max_tokens);
  }
  if (record.submitted) AddOutcomeAttributes(record, attributes);
}

void SpanWriter::Add(const TracedCall& call, ExportTraceServiceRequest& batch) const {
  ScopeSpans& spans = *batch.mutable_resource_spans(0)->mutable_scope_spans(0);
  const CallRecord& record = call.record;
  const std::string trace_id = absl::HexStringToBytes(record.trace_id);
  const std::string call_id = absl::HexStringToBytes(record.span_id);
  const nanoseconds begin = call.end.time_since_epoch() - record.duration;
  const auto add = [&](std::string name, nanoseconds from, nanoseconds to) -> Span& {
    Span& span = *spans.add_spans();
    span.set_trace_id(trace_id);
    span.set_trace_state(record.trace_state);
    span.set_flags(kSampled | otlp::trace::v1::SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK);
    span.set_name(std::move(name));
    span.set_start_time_unix_nano(static_cast<uint64_t>((begin + from).count()));
    span.set_end_time_unix_nano(static_cast<uint64_t>((begin + to).count()));
    return span;
  };

  std::string name = record.full_method();
  if (record.asked) {
    name = absl::StrCat(OperationOf(*record.asked), " ", WellFormed(source_.model));
  }
  Span& server = add(std::move(name), nanoseconds(0), record.duration);
  server.set_span_id(call_id);
  server.set_kind(Span::SPAN_KIND_SERVER);
  if (!record.parent_span_id.empty()) {
    server.set_parent_span_id(absl::HexStringToBytes(record.parent_span_id));
    server.set_flags(server.flags() | otlp::trace::v1::SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK);
  }
  if (IsError(record.status.code())) {
    server.mutable_status()->set_code(otlp::trace::v1::Status::STATUS_CODE_ERROR);
    server.mutable_status()->set_message(WellFormed(std::string(record.status.message())));
  }
  AddAttributes(record, server);

  for (const Part& part : PartsOf(record)) {
    Span& span = add(part.name, part.begin, part.end);
    span.set_span_id(absl::HexStringToBytes(NewSpanId()));
    span.set_parent_span_id(call_id);
    span.set_kind(Span::SPAN_KIND_INTERNAL);
  }
}

}  // namespace eta
