// The records of calls: one record per call, however it ends, written before its client sees the
// status.
#include "service/telemetry/call_record.h"

#include <map>
#include <thread>

#include "engine/base/error.h"
#include "eta/v1/admin.grpc.pb.h"
#include "eta/v1/service.grpc.pb.h"
#include "gmock/gmock.h"
#include "service/wire/grpc_status.h"
#include "service/wire/trace_context.h"
#include "tests/testing/net/generic_call.h"
#include "tests/testing/net/http2_peer.h"
#include "tests/testing/process/call_records.h"
#include "tests/testing/service/calibrate_fixture.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParent[] = "00f067aa0ba902b7";
const std::string kTraceParent = std::string("00-") + kTrace + "-" + kParent + "-01";

class CallRecordTest : public CalibrateTest {
 protected:
  void SetUp() override {
    call_observers_ = {&records_};
    CalibrateTest::SetUp();
  }

  // Returns the single record since the last call of Only.
  CallRecord Only() {
    const std::vector<CallRecord> all = records_.Await(1);
    EXPECT_THAT(all, SizeIs(1));
    records_.Clear();
    return all.empty() ? CallRecord() : all.front();
  }
  static std::string Metadata(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata,
                              const std::string& key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
  }
  // Sends more than client and sockets hold without reading.
  void SayUntilCongested(PuppetCall& call) {
    for (int i = 0; i < 8192 && !call.Congested(); ++i) {
      call.Say(std::string(8 * 1024, 'x'));
      std::this_thread::sleep_for(milliseconds(1));  // time for the writer
    }
    ASSERT_TRUE(call.Congested());
  }

  CallRecords records_;
};

TEST_F(CallRecordTest, AnAnswerWithWhatItsClientWasTold) {
  v1::GenerateRequest request = Ask("hello");
  request.set_request_id("mine");
  ClientCall client(*stub_);
  client.Start(request);
  const auto call = engine_->TakeAndStart();
  call->Say("one");
  call->Say("two");
  EXPECT_THAT(records_.All(), SizeIs(0)) << "not before its end";
  call->Finish(FinishReason::kEndOfText);
  client.ReadText();
  EXPECT_TRUE(client.Finish().ok());
  ASSERT_THAT(records_.All(), SizeIs(1)) << "it is there once the client has its status";
  const CallRecord record = Only();
  EXPECT_EQ(record.method, "Generate");
  EXPECT_EQ(record.request_id, "mine");
  EXPECT_EQ(record.tenant, "default");
  EXPECT_TRUE(record.status.ok());
  EXPECT_GT(record.duration.count(), 0);
  EXPECT_TRUE(record.resolved);
  EXPECT_EQ(record.mode, AttentionMode::kDynamic);
  EXPECT_EQ(record.profile, "");
  EXPECT_TRUE(record.submitted);
  EXPECT_EQ(record.outcome.reason, FinishReason::kEndOfText);
  EXPECT_EQ(record.outcome.output_tokens, 2);
  EXPECT_EQ(record.trace_id, "");
}

TEST_F(CallRecordTest, AProfileIsNamedByWhoeverMakesOrUsesIt) {
  v1::CalibrateRequest calibrate = Request("legal");
  calibrate.set_request_id("cal-1");
  ASSERT_TRUE(Calibrate(calibrate).status.ok());
  const CallRecord made = Only();
  EXPECT_EQ(made.method, "Calibrate");
  EXPECT_EQ(made.request_id, "cal-1");
  EXPECT_EQ(made.profile, "legal");
  EXPECT_EQ(made.profile_version, 1);
  EXPECT_FALSE(made.submitted);

  v1::GenerateRequest request = Ask("hello");
  request.mutable_attention()->set_profile("legal");
  ClientCall client(*stub_);
  client.Start(request);
  const auto call = engine_->TakeAndStart();
  call->Finish();
  client.ReadText();
  EXPECT_TRUE(client.Finish().ok());
  const CallRecord used = Only();
  EXPECT_EQ(used.mode, AttentionMode::kProfile);
  EXPECT_EQ(used.profile, "legal");
  EXPECT_EQ(used.profile_version, 1);
  EXPECT_THAT(used.request_id, StartsWith("eta-")) << "drawn by the server";
}

TEST_F(CallRecordTest, RefusalsAreRecordedAsFarAsTheyCame) {
  const auto refused = [this](const std::string& bytes) {
    GenericCall(channel_, kGenerateMethod).Exchange(bytes);
    return Only();
  };
  CallRecord record = refused("\xff\xff\xff\xff");
  EXPECT_EQ(record.method, "Generate");
  EXPECT_EQ(eta::ReasonOf(record.status), "MALFORMED_MESSAGE");
  EXPECT_EQ(record.tenant, "default");
  EXPECT_FALSE(record.resolved);

  v1::GenerateRequest request = Ask("hello");
  request.set_request_id("mine");
  request.mutable_sampling()->set_top_p(7.0f);
  record = refused(request.SerializeAsString());
  EXPECT_EQ(record.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(record.request_id, "mine");
  EXPECT_TRUE(record.resolved);
  EXPECT_FALSE(record.submitted);

  engine_->Refuse(
      MakeError(absl::StatusCode::kResourceExhausted, "full", {.reason = "QUEUE_FULL"}));
  record = refused(Ask("hello").SerializeAsString());
  EXPECT_EQ(eta::ReasonOf(record.status), "QUEUE_FULL");
  EXPECT_EQ(record.mode, AttentionMode::kDynamic);
  EXPECT_FALSE(record.submitted);

  request = Ask("hello");
  request.mutable_attention()->set_profile("unknown");
  record = refused(request.SerializeAsString());
  EXPECT_EQ(eta::ReasonOf(record.status), "PROFILE_NOT_FOUND");

  ServerOptions options;
  options.tenant_header = kTenantHeader;
  Serve(options);
  record = refused(Ask("hello").SerializeAsString());
  EXPECT_EQ(eta::ReasonOf(record.status), "TENANT_REQUIRED");
  EXPECT_EQ(record.tenant, "");
}

TEST_F(CallRecordTest, FailuresAndCancellationsCountWhatWasMade) {
  ClientCall failing(*stub_);
  failing.Start(Ask("hello"));
  auto call = engine_->TakeAndStart();
  call->Say("one");
  call->Fail(MakeError(absl::StatusCode::kInternal, "NaN", {.reason = "NONFINITE_LOGITS"}));
  failing.ReadText();
  EXPECT_EQ(failing.Finish().error_code(), grpc::StatusCode::INTERNAL);
  CallRecord record = Only();
  EXPECT_EQ(eta::ReasonOf(record.status), "NONFINITE_LOGITS");
  EXPECT_TRUE(record.submitted);
  EXPECT_EQ(record.outcome.output_tokens, 1);

  ClientCall leaving(*stub_);
  leaving.Start(Ask("hello"));
  call = engine_->TakeAndStart();
  leaving.context.TryCancel();
  EXPECT_TRUE(engine_->AwaitCancel(*call));
  call->Fail(absl::CancelledError("cancelled"));
  leaving.Finish();
  record = Only();
  EXPECT_EQ(record.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(eta::ReasonOf(record.status), "CLIENT_CANCELLED");
}

// The client leaves the end to the server: a client that cancels by its own clock may be a little
// too early to count as past its deadline.
TEST_F(CallRecordTest, ARequestWhoseDeadlinePassesIsCancelledAndCountedAsThat) {
  Http2Peer peer(server_->address());
  ASSERT_TRUE(peer.connected());
  std::map<std::string, std::string> reasons;  // reason of each request id
  std::vector<std::shared_ptr<PuppetCall>> calls;
  uint32_t stream = 1;
  for (const char* id : {"waiting", "running"}) {
    v1::GenerateRequest request = Ask("hello");
    request.set_request_id(id);
    peer.Call(stream, kGenerateMethod, {{"grpc-timeout", "500m"}});
    peer.Message(stream, request.SerializeAsString(), /*end_stream=*/true);
    stream += 2;
    calls.push_back(engine_->TakeCall());
    ASSERT_NE(calls.back(), nullptr);
  }
  calls.back()->Start();
  for (const auto& call : calls) {
    EXPECT_TRUE(engine_->AwaitCancel(*call));
    call->Fail(MakeError(absl::StatusCode::kCancelled, "cancelled by the client",
                         {.reason = "CLIENT_CANCELLED"}));
  }
  for (const CallRecord& record : records_.Await(2)) {
    EXPECT_EQ(record.status.code(), absl::StatusCode::kDeadlineExceeded);
    reasons[record.request_id] = record.reason;
  }
  EXPECT_EQ(reasons["waiting"], "DEADLINE_QUEUED");
  EXPECT_EQ(reasons["running"], "DEADLINE_DECODING");
}

TEST_F(CallRecordTest, ACancelBeforeTheDeadlineStaysOneHoweverLateTheCallEnds) {
  for (const bool answered : {true, false}) {
    ClientCall leaving(*stub_);
    leaving.context.set_deadline(std::chrono::system_clock::now() + milliseconds(1500));
    leaving.Start(Ask("hello"));
    const auto call = engine_->TakeAndStart();
    leaving.context.TryCancel();
    EXPECT_TRUE(engine_->AwaitCancel(*call));
    std::this_thread::sleep_for(milliseconds(2000));  // past the deadline
    if (answered) {
      call->Finish();
    } else {
      call->Fail(absl::CancelledError("cancelled"));
    }
    leaving.Finish();
    EXPECT_EQ(Only().reason, "CLIENT_CANCELLED") << answered;
  }
}

TEST_F(CallRecordTest, WhatItsReaderHeldUpIsNoWaitForTheServer) {
  ClientCall late(*stub_);
  late.Start(Ask("hello"));
  auto call = engine_->TakeAndStart();
  SayUntilCongested(*call);
  call->Fail(DeadlinePassed(/*started=*/true));
  late.context.TryCancel();
  CallRecord record = Only();
  EXPECT_EQ(record.reason, "DEADLINE_DECODING");
  EXPECT_TRUE(record.reader_behind);

  ClientCall reading(*stub_);
  reading.Start(Ask("hello"));
  call = engine_->TakeAndStart();
  call->Fail(DeadlinePassed(/*started=*/true));
  reading.ReadText();
  reading.Finish();
  EXPECT_FALSE(Only().reader_behind);
}

TEST_F(CallRecordTest, AnAnswerThatNobodyTookIsNotOk) {
  ClientCall leaving(*stub_);
  leaving.Start(Ask("hello"));
  const auto call = engine_->TakeAndStart();
  leaving.context.TryCancel();
  EXPECT_TRUE(engine_->AwaitCancel(*call));
  call->Say("too late");
  call->Finish();
  leaving.Finish();
  const CallRecord record = Only();
  EXPECT_EQ(record.status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(record.submitted);
  EXPECT_EQ(record.outcome.output_tokens, 1);
}

TEST_F(CallRecordTest, AClientThatDoesNotTakeTheRestOfItsAnswerIsASlowOne) {
  Limits limits;
  limits.max_congestion = milliseconds(200);
  Serve({}, limits);
  ClientCall slow(*stub_);
  slow.Start(Ask("a lot, please"));
  const auto call = engine_->TakeAndStart();
  SayUntilCongested(*call);
  call->Finish();
  const CallRecord record = Only();
  EXPECT_EQ(eta::ReasonOf(record.status), "SLOW_CONSUMER");
  EXPECT_TRUE(record.submitted);
}

TEST_F(CallRecordTest, DrainedCallsAndThoseRefusedAfterwards) {
  ServerOptions options;
  options.drain_timeout = milliseconds(50);
  Serve(options);
  ClientCall running(*stub_);
  running.Start(Ask("take your time"));
  const auto call = engine_->TakeAndStart();
  call->Say("half a");
  server_->Drain();
  running.ReadText();
  EXPECT_EQ(running.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  const CallRecord record = Only();
  EXPECT_EQ(eta::ReasonOf(record.status), "DRAINING");
  EXPECT_EQ(record.outcome.output_tokens, 1);
  Serve();
}

TEST_F(CallRecordTest, EveryMethodHasItsName) {
  ASSERT_TRUE(Calibrate(Request("legal")).status.ok());
  records_.Clear();
  const auto exchange = [this](const std::string& method, const google::protobuf::Message& message,
                               bool ok = true) {
    const std::string name = method.substr(method.rfind('/') + 1);
    const grpc::Status status = GenericCall(channel_, method).Exchange(message.SerializeAsString());
    EXPECT_EQ(status.ok(), ok) << method << ": " << status.error_message();
    const CallRecord record = Only();
    EXPECT_EQ(record.method, name);
    EXPECT_EQ(record.status.ok(), ok);
    EXPECT_EQ(record.tenant, "default");
    return record;
  };
  const std::string profiles = "/eta.v1.ProfileService/";
  v1::GetProfileRequest get;
  get.set_profile("legal@1");
  EXPECT_EQ(exchange(profiles + "GetProfile", get).profile_version, 1);
  get.set_profile("unknown");
  EXPECT_EQ(eta::ReasonOf(exchange(profiles + "GetProfile", get, false).status),
            "PROFILE_NOT_FOUND");
  exchange(profiles + "ListProfiles", v1::ListProfilesRequest());
  v1::ListProfileVersionsRequest versions;
  versions.set_name("legal");
  EXPECT_EQ(exchange(profiles + "ListProfileVersions", versions).profile, "legal");
  v1::SetProfileAliasRequest alias;
  alias.set_name("legal");
  alias.set_alias("stable");
  alias.set_version(1);
  EXPECT_EQ(exchange(profiles + "SetProfileAlias", alias).profile, "legal");
  v1::ExportProfileRequest exported;
  exported.set_profile("legal");
  exchange(profiles + "ExportProfile", exported);
  exchange(profiles + "ImportProfile", v1::ImportProfileRequest(), false);
  v1::PromoteProfileRequest promoted;
  promoted.set_name("legal");
  promoted.set_version(1);
  EXPECT_EQ(exchange(profiles + "PromoteProfile", promoted).profile_version, 1);
  v1::DeleteProfileVersionRequest version;
  version.set_name("legal");
  version.set_version(1);
  EXPECT_EQ(exchange(profiles + "DeleteProfileVersion", version, false).profile_version, 1);
  v1::DeleteProfileRequest removed;
  removed.set_name("legal");
  EXPECT_EQ(exchange(profiles + "DeleteProfile", removed).profile, "legal");
  exchange("/eta.v1.EtaService/Stats", v1::StatsRequest());
  exchange("/eta.v1.AdminService/SetLogLevel", v1::SetLogLevelRequest(), false);
  GenericCall(channel_, "/grpc.health.v1.Health/Check").Exchange("");
  EXPECT_THAT(records_.All(), SizeIs(0)) << "passes are no calls of ours";
}

TEST_F(CallRecordTest, ATraceIsRecordedAndAnswered) {
  ClientCall client(*stub_);
  client.context.AddMetadata(kTraceParentKey, kTraceParent);
  client.context.AddMetadata(kTraceStateKey, "vendor=1");
  client.Start(Ask("hello"));
  const auto call = engine_->TakeAndStart();
  call->Finish();
  client.ReadText();
  EXPECT_TRUE(client.Finish().ok());
  CallRecord record = Only();
  EXPECT_EQ(record.trace_id, kTrace);
  EXPECT_EQ(record.parent_span_id, kParent);
  EXPECT_EQ(record.trace_state, "vendor=1");
  EXPECT_THAT(record.span_id, SizeIs(16));
  EXPECT_NE(record.span_id, kParent);
  const std::string answered = std::string("00-") + kTrace + "-" + record.span_id + "-01";
  EXPECT_EQ(Metadata(client.context.GetServerInitialMetadata(), kTraceParentKey), answered);

  ClientCall refused(*stub_);
  refused.context.AddMetadata(kTraceParentKey, kTraceParent);
  EXPECT_FALSE(refused.Refusal(v1::GenerateRequest()).ok());
  record = Only();
  EXPECT_EQ(record.trace_id, kTrace);
  EXPECT_THAT(refused.Trailer(kTraceParentKey), HasSubstr(record.span_id));

  grpc::ClientContext unary;
  unary.AddMetadata(kTraceParentKey, kTraceParent);
  v1::ListProfilesResponse profiles;
  EXPECT_TRUE(profile_stub_->ListProfiles(&unary, {}, &profiles).ok());
  record = Only();
  EXPECT_EQ(record.trace_id, kTrace);
  EXPECT_THAT(Metadata(unary.GetServerTrailingMetadata(), kTraceParentKey),
              HasSubstr(record.span_id));

  ClientCall bad(*stub_);
  bad.context.AddMetadata(kTraceParentKey, "00-" + std::string(32, '0') + "-" + kParent + "-01");
  EXPECT_FALSE(bad.Refusal(v1::GenerateRequest()).ok());
  EXPECT_EQ(Only().trace_id, "");
  EXPECT_EQ(bad.Trailer(kTraceParentKey), "");
}

TEST_F(CallRecordTest, WhereSpansAreSentACallMayBeginATrace) {
  ServerOptions options;
  options.otlp_endpoint = "http://127.0.0.1:1";
  Serve(options);
  const auto answered = [this](const std::string& parent) {
    ClientCall client(*stub_);
    if (!parent.empty()) client.context.AddMetadata(kTraceParentKey, parent);
    v1::GenerateRequest request = Ask("hello");
    request.mutable_sampling()->set_temperature(0.5f);
    request.mutable_stopping()->set_max_tokens(7);
    client.Start(request);
    engine_->TakeAndStart()->Finish();
    client.ReadText();
    EXPECT_TRUE(client.Finish().ok());
    return Metadata(client.context.GetServerInitialMetadata(), kTraceParentKey);
  };
  std::string told = answered("");
  CallRecord record = Only();
  EXPECT_THAT(record.trace_id, SizeIs(32));
  EXPECT_EQ(record.parent_span_id, "");
  EXPECT_TRUE(record.sampled);
  EXPECT_EQ(told, "00-" + record.trace_id + "-" + record.span_id + "-01");
  ASSERT_TRUE(record.asked);
  EXPECT_FALSE(record.asked->chat);
  EXPECT_EQ(record.asked->temperature, 0.5f);
  EXPECT_EQ(record.asked->max_tokens, 7);

  told = answered(std::string("00-") + kTrace + "-" + kParent + "-00");
  record = Only();
  EXPECT_EQ(record.trace_id, kTrace);
  EXPECT_FALSE(record.sampled) << "its caller does not want it";
  EXPECT_THAT(told, ::testing::EndsWith("-00"));

  options.otlp_sampling = 0.0;
  Serve(options);
  EXPECT_EQ(answered(""), "");
  EXPECT_EQ(Only().trace_id, "");
  answered(kTraceParent);
  EXPECT_TRUE(Only().sampled) << "its caller does";
}

}  // namespace
}  // namespace eta::testing
