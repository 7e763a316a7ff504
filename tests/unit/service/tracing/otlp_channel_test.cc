// What a collector's answers mean, and batches that go over a socket.
#include "service/tracing/otlp_channel.h"

#include <cstdint>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "service/tracing/call_spans.h"
#include "tests/testing/net/free_port.h"
#include "tests/testing/service/span_recorder.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::SizeIs;
using Outcome = SendOutcome::Kind;

grpc::Status WithRetry(grpc::StatusCode code, int64_t retry_seconds, int32_t nanos) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(retry_seconds);
  retry.mutable_retry_delay()->set_nanos(nanos);
  google::rpc::Status details;
  details.add_details()->PackFrom(retry);
  return {code, "busy", details.SerializeAsString()};
}

TEST(OtlpAnswer, ByItsCodeABatchIsTriedAgainOrNot) {
  for (const auto code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::DEADLINE_EXCEEDED,
                          grpc::StatusCode::CANCELLED, grpc::StatusCode::ABORTED,
                          grpc::StatusCode::OUT_OF_RANGE, grpc::StatusCode::DATA_LOSS}) {
    EXPECT_EQ(OutcomeOf({code, ""}, {}).kind, Outcome::kTryAgain) << code;
  }
  for (const auto code : {grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::UNAUTHENTICATED,
                          grpc::StatusCode::PERMISSION_DENIED, grpc::StatusCode::UNIMPLEMENTED,
                          grpc::StatusCode::INTERNAL, grpc::StatusCode::RESOURCE_EXHAUSTED}) {
    EXPECT_EQ(OutcomeOf({code, ""}, {}).kind, Outcome::kRefused) << code;
  }
  const SendOutcome later = OutcomeOf(WithRetry(grpc::StatusCode::RESOURCE_EXHAUSTED, 2, 1), {});
  EXPECT_EQ(later.kind, Outcome::kTryAgain);
  EXPECT_EQ(later.retry_after, milliseconds(2001)) << "not sooner";
  EXPECT_EQ(later.error, "busy");
}

TEST(OtlpAnswer, NoDelayIsBelievedThatIsTooLongOrNone) {
  const auto delay = [](int64_t retry_seconds, int32_t nanos) {
    return OutcomeOf(WithRetry(grpc::StatusCode::UNAVAILABLE, retry_seconds, nanos), {})
        .retry_after;
  };
  EXPECT_EQ(delay(INT64_MAX, INT32_MAX), seconds(30));
  EXPECT_EQ(delay(INT64_MIN, INT32_MIN), seconds(0));
  EXPECT_EQ(OutcomeOf({grpc::StatusCode::UNAVAILABLE, "", "\xff\xff"}, {}).retry_after,
            std::nullopt);
}

otlp::collector::trace::v1::ExportTraceServiceRequest OneSpan() {
  auto batch = SpanWriter({.model = "tiny"}).NewBatch();
  CallRecord record{.method = "Stats", .trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"};
  record.span_id = "b7ad6b7169203331";
  SpanWriter({.model = "tiny"}).Add({.record = record}, batch);
  return batch;
}

TEST(OtlpChannel, BringsABatchAndTheAnswerToIt) {
  testing::SpanRecorder recorder;
  ServerOptions options;
  options.otlp_endpoint = recorder.endpoint();
  OtlpChannel channel(options);
  EXPECT_EQ(channel.Send(OneSpan(), Clock::now() + seconds(20)).kind, Outcome::kTaken);
  EXPECT_THAT(recorder.Await(1), SizeIs(1));
  recorder.Answer(grpc::Status::OK, /*rejected=*/1);
  const SendOutcome partly = channel.Send(OneSpan(), Clock::now() + seconds(20));
  EXPECT_EQ(partly.kind, Outcome::kTaken);
  EXPECT_EQ(partly.rejected, 1);
  EXPECT_EQ(partly.error, "no room");
  recorder.Answer({grpc::StatusCode::PERMISSION_DENIED, "no"});
  EXPECT_EQ(channel.Send(OneSpan(), Clock::now() + seconds(20)).kind, Outcome::kRefused);
}

TEST(OtlpChannel, FindsACollectorThatComesLater) {
  const int port = testing::FreePort();
  ServerOptions options;
  options.otlp_endpoint = absl::StrCat("http://127.0.0.1:", port);
  OtlpChannel channel(options);
  EXPECT_EQ(channel.Send(OneSpan(), Clock::now() + seconds(20)).kind, Outcome::kTryAgain);
  testing::SpanRecorder recorder(port);
  SendOutcome outcome{.kind = Outcome::kTryAgain};
  for (int i = 0; i < 200 && outcome.kind == Outcome::kTryAgain; ++i) {
    std::this_thread::sleep_for(milliseconds(100));
    outcome = channel.Send(OneSpan(), Clock::now() + seconds(20));
  }
  EXPECT_EQ(outcome.kind, Outcome::kTaken);
}

TEST(OtlpChannel, OnceCancelledSendsNothing) {
  testing::SpanRecorder recorder;
  ServerOptions options;
  options.otlp_endpoint = recorder.endpoint();
  OtlpChannel channel(options);
  channel.Cancel();
  EXPECT_EQ(channel.Send(OneSpan(), Clock::now() + seconds(20)).kind, Outcome::kTryAgain);
  EXPECT_THAT(recorder.Batches(), SizeIs(0));
}

}  // namespace
}  // namespace eta
