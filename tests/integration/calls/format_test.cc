// Calls whose answers have a format, at a server with a puppet engine: the test plays the client,
// the compiler of formats and the step thread.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/net/health_call.h"
#include "tests/testing/process/call_records.h"
#include "tests/testing/service/gateway_fixture.h"
#include "tests/testing/service/service_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;

constexpr char kSchema[] = R"({"type": "object"})";

v1::GenerateRequest AskInJson(const std::string& text = "Once") {
  v1::GenerateRequest request = Ask(text);
  request.mutable_format()->set_json_schema(kSchema);
  return request;
}

class FormatTest : public ServiceTest {
 protected:
  void SetUp() override {
    call_observers_ = {&records_};
    Serve();
  }
  void TearDown() override {
    if (engine_ != nullptr) formats().Release();  // who waits for it ends
    ServiceTest::TearDown();
  }
  PuppetFormats& formats() { return engine_->formats(); }
  int64_t Waiting() { return server_->Status().format_calls.waiting; }
  // Of the call that ended last.
  FormatUse Use() { return records_.Last().format.value(); }

  CallRecords records_;
  std::vector<std::unique_ptr<v1::EtaService::Stub>> stubs_;
};

TEST_F(FormatTest, IsCompiledOnceAndThenFound) {
  for (const bool kept : {false, true}) {
    ClientCall client(*stub_);
    client.Start(AskInJson());
    const auto call = engine_->TakeAndStart();
    ASSERT_NE(call->request().format, nullptr);
    EXPECT_EQ(call->request().format->format().kind, AnswerFormatKind::kJsonSchema);
    EXPECT_EQ(call->request().format->format().source, kSchema);
    call->Say("{}");
    call->Finish(kept ? FinishReason::kEndOfText : FinishReason::kCutOff);
    EXPECT_EQ(client.ReadText(), "{}");
    EXPECT_EQ(client.finished.finish_reason(),
              kept ? v1::FINISH_REASON_END_OF_TEXT : v1::FINISH_REASON_CUT_OFF);
    EXPECT_TRUE(client.Finish().ok());
    const FormatUse use = Use();
    EXPECT_EQ(use.kind, AnswerFormatKind::kJsonSchema);
    EXPECT_EQ(use.kept, kept);
    EXPECT_EQ(use.compile.has_value(), !kept);
  }
  EXPECT_EQ(formats().compiled(), 1);
}

TEST_F(FormatTest, TokenIdsAndChatsHaveFormatsToo) {
  v1::GenerateRequest ids = AskInJson();
  ids.mutable_token_ids()->add_ids(5);
  v1::GenerateRequest chat = AskInJson();
  auto& message = *chat.mutable_chat()->add_messages();
  message.set_role(v1::CHAT_ROLE_USER);
  message.set_text("");
  chat.mutable_format()->mutable_choice()->add_choices("yes");
  for (const v1::GenerateRequest& request : {ids, chat}) {
    ClientCall client(*stub_);
    client.Start(request);
    const auto call = engine_->TakeAndStart();
    EXPECT_NE(call->request().format, nullptr);
    call->Finish();
    client.ReadText();
    EXPECT_TRUE(client.Finish().ok());
  }
}

TEST_F(FormatTest, RefusalsComeInTheirOrder) {
  const auto refusal = [&](const v1::GenerateRequest& request) {
    return ClientCall(*stub_).Refusal(request);
  };
  // The form, then values of the request, then the format, and all of them before it is compiled.
  v1::GenerateRequest request = AskInJson();
  request.mutable_sampling()->set_top_p(7);
  request.mutable_format()->clear_kind();
  EXPECT_THAT(refusal(request), FailsAt(StatusCode::INVALID_ARGUMENT, "format"));
  request.mutable_format()->set_regex("");
  EXPECT_THAT(refusal(request), FailsAt(StatusCode::INVALID_ARGUMENT, "sampling.top_p"));
  request.clear_sampling();
  EXPECT_THAT(refusal(request), FailsAt(StatusCode::INVALID_ARGUMENT, "format.regex"));
  EXPECT_EQ(formats().compiled(), 0);
  // Then what the compiler says, before the prompt is made tokens and before the queue's word.
  formats().Refuse(InvalidField("format.json_schema", "/properties/a/not: cannot be enforced"));
  engine_->Refuse(
      MakeError(absl::StatusCode::kResourceExhausted, "full", {.reason = "QUEUE_FULL"}));
  EXPECT_THAT(refusal(AskInJson()), FailsAt(StatusCode::INVALID_ARGUMENT, "format.json_schema"));
  EXPECT_EQ(formats().compiled(), 1);
  EXPECT_EQ(engine_->tokenized_bytes(), 0);
  formats().Refuse(absl::OkStatus());
  EXPECT_THAT(refusal(AskInJson()), FailsWith(StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"));
  ExpectGoodCall();
}

// bad input: Formats of answers | one that takes too long or too much memory to compile |
//   DEADLINE_EXCEEDED, FORMAT_TOO_SLOW; RESOURCE_EXHAUSTED, FORMAT_TOO_LARGE; nobody else is hurt
// bad input: Formats of answers | any, to a server that was built without | UNIMPLEMENTED,
//   UNSUPPORTED_BY_SERVER; free text is served
TEST_F(FormatTest, WhatTheCompilerSaysIsTheAnswer) {
  const std::tuple<absl::StatusCode, const char*, StatusCode> cases[] = {
      {absl::StatusCode::kDeadlineExceeded, "FORMAT_TOO_SLOW", StatusCode::DEADLINE_EXCEEDED},
      {absl::StatusCode::kResourceExhausted, "FORMAT_TOO_LARGE", StatusCode::RESOURCE_EXHAUSTED},
      {absl::StatusCode::kUnimplemented, "UNSUPPORTED_BY_SERVER", StatusCode::UNIMPLEMENTED},
  };
  for (const auto& [code, reason, seen] : cases) {
    formats().Refuse(MakeError(code, "format: no", {.reason = reason}));
    EXPECT_THAT(ClientCall(*stub_).Refusal(AskInJson()), FailsWith(seen, reason));
    EXPECT_TRUE(Use().compile.has_value());
    ExpectGoodCall();
  }
  EXPECT_EQ(engine_->submissions(), 3) << "those of the good calls";
}

TEST_F(FormatTest, WhoIsCompiledForHoldsUpNobodyElse) {
  ServerOptions options;
  options.tenant_header = kTenantHeader;
  options.admin_tenants = {"ops"};
  Serve(options);
  formats().Hold();
  std::vector<std::unique_ptr<ClientCall>> held;
  for (int i = 0; i < 20; ++i) {  // more than there are threads
    held.push_back(std::make_unique<ClientCall>(*stub_));
    held.back()->context.AddMetadata(kTenantHeader, "slow");
    v1::GenerateRequest request = AskInJson();
    request.mutable_format()->set_regex(std::string(static_cast<size_t>(i) + 1, 'a'));
    held.back()->Start(request);
  }
  ASSERT_TRUE(formats().AwaitCompiling(4));
  for (const std::string tenant : {"slow", "other"}) ExpectGoodCall({{kTenantHeader, tenant}});
  for (const char* service : {"liveness", "readiness"}) {
    EXPECT_EQ(CheckHealth(OwnConnection(server_->address()), service), HealthStatus::SERVING);
  }
  grpc::ClientContext context;
  context.AddMetadata(kTenantHeader, "ops");
  v1::Stats stats;
  EXPECT_TRUE(stub_->Stats(&context, {}, &stats).ok());
  EXPECT_TRUE(Eventually([this] { return Waiting() == 16; }));
  // A tenant that floods leaves threads to the next one.
  ClientCall other(*stub_);
  other.context.AddMetadata(kTenantHeader, "other");
  other.Start(AskInJson());
  EXPECT_TRUE(formats().AwaitCompiling(5));
  EXPECT_EQ(Waiting(), 16);
  formats().Release();
  for (size_t i = 0; i <= held.size(); ++i) engine_->TakeAndStart()->Finish();
  for (const auto& client : held) {
    client->ReadText();
    EXPECT_TRUE(client->Finish().ok());
  }
  other.ReadText();
  EXPECT_TRUE(other.Finish().ok());
}

TEST_F(FormatTest, WhoLeavesDoesNotWaitOn) {
  formats().Hold();
  ClientCall client(*stub_);
  client.Start(AskInJson());
  ASSERT_TRUE(formats().AwaitCompiling(1));
  client.context.TryCancel();
  EXPECT_EQ(client.Finish().error_code(), StatusCode::CANCELLED);
  const CallRecord record = records_.Await(1).back();  // the server hears of it later
  EXPECT_TRUE(absl::IsCancelled(record.status));
  EXPECT_FALSE(record.submitted);
  EXPECT_TRUE(record.format->compile.has_value());
  ExpectGoodCall();
  formats().Release();
  ASSERT_TRUE(formats().AwaitCompiling(0));
  EXPECT_EQ(engine_->submissions(), 1) << "that of the good call";
  EXPECT_NE(formats().Find("default", {.kind = AnswerFormatKind::kJsonSchema, .source = kSchema}),
            nullptr)
      << "the next one finds it";
}

TEST_F(FormatTest, WhoHasLeftIsNotCompiledFor) {
  formats().Hold();
  std::vector<std::unique_ptr<ClientCall>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<ClientCall>(*stub_));
    clients.back()->Start(AskInJson());
  }
  ASSERT_TRUE(formats().AwaitCompiling(4));
  ASSERT_TRUE(Eventually([&] { return Waiting() == 4; }));
  for (const auto& client : clients) client->context.TryCancel();
  for (const auto& client : clients) client->Finish();
  EXPECT_EQ(records_.Await(clients.size()).size(), clients.size());
  formats().Release();
  ASSERT_TRUE(Eventually([&] { return Waiting() == 0; }));
  ASSERT_TRUE(formats().AwaitCompiling(0));
  EXPECT_EQ(formats().compiled(), 4);
  EXPECT_EQ(engine_->submissions(), 0);
}

TEST_F(FormatTest, ADeadlinePassesWhileItIsCompiled) {
  formats().Hold();
  ClientCall client(*stub_);
  client.context.set_deadline(std::chrono::system_clock::now() + milliseconds(200));
  client.Start(AskInJson());
  client.ReadText();
  EXPECT_EQ(client.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  const CallRecord record = records_.Await(1).back();  // the server hears of it later
  EXPECT_TRUE(absl::IsDeadlineExceeded(record.status));
  EXPECT_EQ(engine_->submissions(), 0);
  formats().Release();
  ExpectGoodCall();
}

TEST_F(FormatTest, TheDefaultDeadlineBoundsIt) {
  Serve({}, {.default_deadline = milliseconds(200)});
  formats().Hold();
  ClientCall client(*stub_);
  client.context.set_deadline(std::chrono::system_clock::time_point::max());
  EXPECT_THAT(client.Refusal(AskInJson()),
              FailsWith(StatusCode::DEADLINE_EXCEEDED, "FORMAT_TOO_SLOW"));
}

TEST_F(FormatTest, AFloodOfFormatsIsRefusedAndLeavesRoomForOthers) {
  ServerOptions options;
  options.tenant_header = kTenantHeader;
  Serve(options);
  formats().Hold();
  const int64_t places = server_->Status().format_calls.max_waiting;
  const auto begin = [&](const std::string& tenant, int64_t count, auto& calls) {
    for (int64_t i = 0; i < count; ++i) {
      if (i % 50 == 0) stubs_.push_back(v1::EtaService::NewStub(NewChannel()));
      calls.push_back(std::make_unique<ClientCall>(*stubs_.back()));
      calls.back()->context.AddMetadata(kTenantHeader, tenant);
      calls.back()->Start(AskInJson());
    }
  };
  std::vector<std::unique_ptr<ClientCall>> calls;
  begin("flood", 4 + places / 2, calls);
  ASSERT_TRUE(Eventually([&] { return Waiting() == places / 2; }));
  ClientCall refused(*stub_);
  refused.context.AddMetadata(kTenantHeader, "flood");
  const grpc::Status status = refused.Refusal(AskInJson());
  EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"));
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status).has_value());
  begin("other", 1, calls);
  EXPECT_TRUE(formats().AwaitCompiling(5));
  for (const auto& call : calls) call->context.TryCancel();
  for (const auto& call : calls) call->Finish();
}

TEST_F(FormatTest, ADrainRefusesWhatWaits) {
  formats().Hold();
  ClientCall client(*stub_);
  client.Start(AskInJson());
  ASSERT_TRUE(formats().AwaitCompiling(1));
  std::thread drain([&] { server_->Drain(); });
  grpc::Status status;
  do {  // until it takes no new calls
    ClientCall more(*stub_);
    status = more.Refusal(Ask(""));
  } while (status.error_code() == StatusCode::INVALID_ARGUMENT);
  formats().Release();
  client.ReadText();
  EXPECT_THAT(client.Finish(), FailsWith(StatusCode::UNAVAILABLE, "DRAINING"));
  drain.join();
}

class GatewayFormatTest : public FormatTest {
 protected:
  void SetUp() override {
    call_observers_ = {&records_};
    ServerOptions options;
    options.vllm_listen = {"127.0.0.1:0"};
    Serve(options);
  }
  std::shared_ptr<grpc::Channel> Gateway() {
    return OwnConnection(server_->vllm_listeners().at(0)->address());
  }
};

TEST_F(GatewayFormatTest, AConstraintIsAFormatOfEachAnswer) {
  auto request = GatewayRequest({3, 4});
  request.mutable_sampling_params()->set_n(2);
  request.mutable_sampling_params()->mutable_choice()->add_choices("yes");
  GatewayCall client(Gateway());
  client.Start(request);
  const auto first = engine_->TakeAndStart();
  const auto second = engine_->TakeAndStart();
  ASSERT_NE(first->request().format, nullptr);
  EXPECT_EQ(first->request().format, second->request().format);
  first->Finish(FinishReason::kCutOff);
  second->Finish(FinishReason::kEndOfText);
  client.ReadAll();
  ASSERT_EQ(client.completes.size(), 2u);
  EXPECT_EQ(client.completes[0].finish_reason(), "length");
  EXPECT_TRUE(client.Finish().ok());
}

TEST_F(GatewayFormatTest, AFieldIsNamedAsThatApiSpellsIt) {
  auto request = GatewayRequest({3});
  request.mutable_sampling_params()->set_regex("");
  EXPECT_THAT(GatewayCall(Gateway()).Refusal(request),
              FailsAt(StatusCode::INVALID_ARGUMENT, "sampling_params.regex"));
  formats().Refuse(InvalidField("format.json_schema", "/not: cannot be enforced"));
  request.mutable_sampling_params()->set_json_schema("{\"not\": {}}");
  const grpc::Status status = GatewayCall(Gateway()).Refusal(request);
  EXPECT_THAT(status, FailsAt(StatusCode::INVALID_ARGUMENT, "sampling_params.json_schema"));
  EXPECT_EQ(status.error_message(), "sampling_params.json_schema: /not: cannot be enforced");
}

TEST_F(GatewayFormatTest, AbortEndsWhatIsBeingCompiled) {
  formats().Hold();
  auto request = GatewayRequest({3});
  request.set_request_id("a");
  request.mutable_sampling_params()->set_json_object(true);
  GatewayCall client(Gateway());
  client.Start(request);
  ASSERT_TRUE(formats().AwaitCompiling(1));
  gateway_pb::AbortRequest abort;
  abort.add_request_ids("a");
  gateway_pb::AbortResponse response;
  EXPECT_TRUE(AskGateway(Gateway(), &gateway_pb::VllmEngine::Stub::Abort, abort, response).ok());
  client.ReadAll();
  ASSERT_EQ(client.completes.size(), 1u);
  EXPECT_EQ(client.completes[0].finish_reason(), "abort");
  EXPECT_TRUE(client.Finish().ok());
  formats().Release();
  EXPECT_EQ(engine_->submissions(), 0);
}

}  // namespace
}  // namespace eta::testing
