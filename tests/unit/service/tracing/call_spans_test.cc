// The spans that a call's record becomes.
#include "service/tracing/call_spans.h"

#include <algorithm>
#include <set>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/service/span_reading.h"

namespace eta {
namespace {

using otlp::trace::v1::Span;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using testing::AttributesOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::Hex;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kCaller[] = "00f067aa0ba902b7";
constexpr char kSpan[] = "b7ad6b7169203331";
const auto kEnd = std::chrono::system_clock::time_point(std::chrono::hours(500'000));

CallRecord Answered() {
  CallRecord record{.method = "Generate", .request_id = "mine", .trace_id = kTraceId};
  record.parent_span_id = kCaller;
  record.span_id = kSpan;
  record.sampled = true;
  record.trace_state = "vendor=1";
  record.tenant = "acme";
  record.duration = milliseconds(500);
  record.asked = {.temperature = 0.7f, .top_p = 1.0f, .max_tokens = 60};
  record.resolved = true;
  record.mode = AttentionMode::kProfile;
  record.profile = "legal";
  record.profile_version = 3;
  record.submitted = true;
  record.outcome.reason = FinishReason::kEndOfText;
  record.outcome.prompt_tokens = 812;
  record.outcome.cached_tokens = 768;
  record.outcome.output_tokens = 60;
  record.outcome.timing = {.queue = milliseconds(10),
                           .prefill = milliseconds(90),
                           .first_token = milliseconds(100),
                           .decode = milliseconds(390)};
  AttentionSums& attention = record.outcome.attention;
  attention.decode_rows = 59;
  return record;
}

std::vector<Span> SpansOf(const CallRecord& record) {
  const SpanWriter writer({.model = "eta-27m", .version = "1.2.3", .instance = "here"});
  auto batch = writer.NewBatch();
  writer.Add({.record = record, .end = kEnd}, batch);
  std::vector<Span> spans = testing::SpansOf(batch);
  EXPECT_EQ(static_cast<int>(spans.size()), SpanCount(record));
  return spans;
}

nanoseconds StartsAt(const Span& span) {
  return nanoseconds(span.start_time_unix_nano()) - (kEnd.time_since_epoch() - milliseconds(500));
}
nanoseconds EndsAt(const Span& span) {
  return nanoseconds(span.end_time_unix_nano()) - (kEnd.time_since_epoch() - milliseconds(500));
}
std::vector<std::string> NamesOf(const std::vector<Span>& spans) {
  std::vector<std::string> names;
  for (const Span& span : spans) names.push_back(span.name());
  return names;
}

TEST(CallSpans, AnAnswerIsATreeUnderItsCallersSpan) {
  const std::vector<Span> spans = SpansOf(Answered());
  ASSERT_THAT(NamesOf(spans), ElementsAre("text_completion eta-27m", "queue", "prefill", "decode"));
  const Span& call = spans[0];
  EXPECT_EQ(Hex(call.span_id()), kSpan) << "the one that the answer named";
  EXPECT_EQ(Hex(call.parent_span_id()), kCaller);
  EXPECT_EQ(call.kind(), Span::SPAN_KIND_SERVER);
  EXPECT_EQ(call.flags(), 0x301u) << "sampled, and its parent is elsewhere";
  EXPECT_EQ(StartsAt(call), nanoseconds(0));
  EXPECT_EQ(EndsAt(call), milliseconds(500));
  EXPECT_EQ(call.status().code(), otlp::trace::v1::Status::STATUS_CODE_UNSET);

  const std::pair<milliseconds, milliseconds> times[] = {{milliseconds(0), milliseconds(10)},
                                                         {milliseconds(10), milliseconds(100)},
                                                         {milliseconds(100), milliseconds(490)}};
  std::set<std::string> ids = {call.span_id()};
  for (size_t i = 1; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].parent_span_id(), call.span_id());
    EXPECT_EQ(spans[i].kind(), Span::SPAN_KIND_INTERNAL);
    EXPECT_EQ(spans[i].flags(), 0x101u);
    EXPECT_THAT(spans[i].span_id(), SizeIs(8));
    EXPECT_EQ(StartsAt(spans[i]), times[i - 1].first) << spans[i].name();
    EXPECT_EQ(EndsAt(spans[i]), times[i - 1].second) << spans[i].name();
    ids.insert(spans[i].span_id());
  }
  EXPECT_THAT(ids, SizeIs(4));
  for (const Span& span : spans) {
    EXPECT_EQ(Hex(span.trace_id()), kTraceId);
    EXPECT_EQ(span.trace_state(), "vendor=1");
  }
}

TEST(CallSpans, AttributesHaveTheNamesOfTheConventions) {
  CallRecord record = Answered();
  const auto attributes = AttributesOf(SpansOf(record)[0]);
  EXPECT_THAT(attributes, IsSupersetOf({Pair("rpc.system.name", "grpc"),
                                        Pair("rpc.method", "eta.v1.EtaService/Generate"),
                                        Pair("rpc.response.status_code", "OK"),
                                        Pair("gen_ai.operation.name", "text_completion"),
                                        Pair("gen_ai.provider.name", "eta"),
                                        Pair("gen_ai.request.model", "eta-27m"),
                                        Pair("gen_ai.request.temperature", "0.7"),
                                        Pair("gen_ai.request.top_p", "1"),
                                        Pair("gen_ai.request.max_tokens", "60"),
                                        Pair("gen_ai.response.finish_reasons", "[end_of_text]"),
                                        Pair("gen_ai.response.time_to_first_chunk", "0.1"),
                                        Pair("gen_ai.usage.input_tokens", "812"),
                                        Pair("gen_ai.usage.output_tokens", "60"),
                                        Pair("gen_ai.usage.cache_read.input_tokens", "768"),
                                        Pair("eta.request_id", "mine"),
                                        Pair("eta.tenant", "acme"),
                                        Pair("eta.profile.name", "legal"),
                                        Pair("eta.profile.version", "3"),
                                        Pair("eta.attention.mode", "profile"),
                                        Pair("eta.decode_rows", "59")}));
  EXPECT_THAT(attributes, Contains(Key("eta.head_density")));
  EXPECT_THAT(attributes, Contains(Key("eta.union_density")));
  EXPECT_THAT(attributes, Not(Contains(Key("error.type"))));

  record.asked->chat = true;
  EXPECT_EQ(SpansOf(record)[0].name(), "chat eta-27m");
  record.outcome.attention.decode_rows = 0;
  EXPECT_THAT(AttributesOf(SpansOf(record)[0]), Not(Contains(Key("eta.union_density"))))
      << "of no row there is no density";
}

TEST(CallSpans, ACallHasThePartsThatItReached) {
  CallRecord record = Answered();
  record.status =
      MakeError(absl::StatusCode::kDeadlineExceeded, "too late", {.reason = "DEADLINE_DECODING"});
  record.outcome.timing.first_token = record.outcome.timing.decode = nanoseconds(0);
  record.outcome.output_tokens = 0;
  std::vector<Span> spans = SpansOf(record);
  EXPECT_THAT(NamesOf(spans), ElementsAre("text_completion eta-27m", "queue", "prefill"));
  EXPECT_EQ(EndsAt(spans.back()), milliseconds(500));
  EXPECT_THAT(AttributesOf(spans[0]), Not(Contains(Key("gen_ai.response.time_to_first_chunk"))));

  record.outcome.timing.queue = nanoseconds(0);
  spans = SpansOf(record);
  EXPECT_THAT(NamesOf(spans), ElementsAre("text_completion eta-27m", "queue"));
  EXPECT_EQ(EndsAt(spans.back()), milliseconds(500));

  record.submitted = false;
  EXPECT_THAT(SpansOf(record), SizeIs(1));
}

TEST(CallSpans, NoPartEndsAfterItsCall) {
  CallRecord record = Answered();
  record.outcome.timing.decode = milliseconds(405);  // the engine's clock began a little later
  EXPECT_EQ(EndsAt(SpansOf(record).back()), milliseconds(500));
}

TEST(CallSpans, OnlyWhatTheServerIsToBlameForIsAnError) {
  using otlp::trace::v1::Status;
  CallRecord record = Answered();
  const auto status_of = [&](absl::StatusCode code) {
    record.status = absl::Status(code, "why");
    record.reason = "SOME_REASON";
    const Span span = SpansOf(record)[0];
    EXPECT_EQ(AttributesOf(span).at("error.type"), "SOME_REASON");
    EXPECT_EQ(AttributesOf(span).at("rpc.response.status_code"), absl::StatusCodeToString(code));
    EXPECT_THAT(AttributesOf(span), Not(Contains(Key("gen_ai.response.finish_reasons"))));
    EXPECT_EQ(span.status().message(),
              span.status().code() == Status::STATUS_CODE_ERROR ? "why" : "");
    return span.status().code();
  };
  for (const auto code :
       {absl::StatusCode::kInternal, absl::StatusCode::kUnavailable, absl::StatusCode::kUnknown,
        absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kDataLoss}) {
    EXPECT_EQ(status_of(code), Status::STATUS_CODE_ERROR) << code;
  }
  for (const auto code :
       {absl::StatusCode::kInvalidArgument, absl::StatusCode::kCancelled,
        absl::StatusCode::kResourceExhausted, absl::StatusCode::kNotFound,
        absl::StatusCode::kPermissionDenied, absl::StatusCode::kUnauthenticated}) {
    EXPECT_EQ(status_of(code), Status::STATUS_CODE_UNSET) << code;
  }
}

TEST(CallSpans, ATraceThatBeganHereHasARoot) {
  CallRecord record = Answered();
  record.parent_span_id = "";
  const Span span = SpansOf(record)[0];
  EXPECT_EQ(span.parent_span_id(), "");
  EXPECT_EQ(span.flags(), 0x101u);
}

TEST(CallSpans, OtherMethodsAreCalledByTheirFullNames) {
  CallRecord record{.method = "Calibrate", .trace_id = kTraceId};
  record.span_id = kSpan;
  for (const char* service :
       {"eta.v1.EtaService", "eta.v1.ProfileService", "vllm.grpc.engine.VllmEngine"}) {
    record.service = service;
    const std::vector<Span> spans = SpansOf(record);
    ASSERT_THAT(spans, SizeIs(1));
    EXPECT_EQ(spans[0].name(), std::string(service) + "/Calibrate");
    EXPECT_EQ(AttributesOf(spans[0]).at("rpc.method"), spans[0].name());
    EXPECT_THAT(AttributesOf(spans[0]), Not(Contains(Key("gen_ai.operation.name"))));
  }
}

// A collector would refuse the whole batch.
TEST(CallSpans, TextsAreShortAndUtf8) {
  CallRecord record = Answered();
  record.tenant = "caf\xc3\xa9\xff!";
  record.status = absl::InternalError(std::string(1023, 'x') + "\xc3\xa9");
  const Span span = SpansOf(record)[0];
  EXPECT_EQ(AttributesOf(span).at("eta.tenant"), "caf\xc3\xa9");
  EXPECT_EQ(span.status().message(), std::string(1023, 'x'));
}

TEST(CallSpans, ABatchSaysWhoseItIs) {
  const auto batch =
      SpanWriter({.model = "eta-27m", .version = "1.2.3", .instance = "here"}).NewBatch();
  ASSERT_EQ(batch.resource_spans_size(), 1);
  EXPECT_THAT(AttributesOf(batch.resource_spans(0).resource()),
              ElementsAre(Pair("service.instance.id", "here"), Pair("service.name", "eta-server"),
                          Pair("service.version", "1.2.3")));
  EXPECT_EQ(batch.resource_spans(0).scope_spans(0).scope().name(), "eta-server");
}

}  // namespace
}  // namespace eta
