// Calls of tools in the answers to chats, at a server with a puppet engine: the test plays the
// client and the step thread.
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/engine/tagged_form.h"
#include "tests/testing/service/service_fixture.h"

namespace eta::testing {
namespace {

using ::testing::ElementsAre;

constexpr char kCall[] =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";

AnswerForm MarkedForm() {
  AnswerForm form = TaggedForm();
  form.marks = {{.id = 9, .text = "<think>"}};
  return form;
}

v1::GenerateRequest AskForWeather() {
  v1::GenerateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role(v1::CHAT_ROLE_USER);
  message.set_text("Weather?");
  request.mutable_chat()->add_tools()->set_name("weather");
  request.mutable_sampling()->set_seed(5);
  return request;
}

class ToolsTest : public ServiceTest {
 protected:
  void SetUp() override {
    Serve();
    engine_->AnswerAs(MarkedForm());
  }

  // All of an answer in one message.
  struct Told {
    v1::GenerateResponse message;
    v1::Finished finished;
  };
  Told Read(ClientCall& client) {
    Told told;
    told.message.mutable_delta();
    for (v1::GenerateResponse response = client.Read();
         response.event_case() != v1::GenerateResponse::EVENT_NOT_SET; response = client.Read()) {
      if (response.has_finished()) told.finished = response.finished();
      v1::Delta& delta = *told.message.mutable_delta();
      delta.mutable_text()->append(response.delta().text());
      delta.mutable_reasoning()->append(response.delta().reasoning());
      delta.mutable_tool_calls()->MergeFrom(response.delta().tool_calls());
    }
    EXPECT_TRUE(client.Finish().ok());
    return told;
  }
};

TEST_F(ToolsTest, CallsAndReasoningComeApartFromTheText) {
  ClientCall client(*stub_);
  client.Start(AskForWeather());
  const auto call = engine_->TakeAndStart();
  EXPECT_THAT(call->request().output.marks, ElementsAre(9));
  call->Say("", {{.at = 0, .id = 9}});
  call->Say("Hm.</think>Let me see.\n");
  for (const char c : std::string(kCall)) call->Say(std::string(1, c));
  call->Finish(FinishReason::kEndOfText);
  const Told told = Read(client);
  EXPECT_EQ(told.message.delta().reasoning(), "Hm.");
  EXPECT_EQ(told.message.delta().text(), "Let me see.");
  ASSERT_EQ(told.finished.tool_calls_size(), 1);
  const v1::ToolCall& whole = told.finished.tool_calls(0);
  EXPECT_EQ(whole.name(), "weather");
  EXPECT_EQ(whole.arguments(), "{\"city\": \"Paris\"}");
  const auto& parts = told.message.delta().tool_calls();
  ASSERT_FALSE(parts.empty());
  EXPECT_EQ(parts[0].id(), whole.id());
  EXPECT_EQ(parts[0].name(), "weather");
  std::string arguments;
  for (const v1::ToolCallDelta& part : parts) arguments += part.arguments();
  EXPECT_EQ(arguments, whole.arguments());
  EXPECT_EQ(told.finished.finish_reason(), v1::FINISH_REASON_END_OF_TEXT);
}

TEST_F(ToolsTest, WhatIsHeldBackComesWithTheEnd) {
  ClientCall client(*stub_);
  client.Start(AskForWeather());
  const auto call = engine_->TakeAndStart();
  const std::string cut(kCall, sizeof(kCall) - 20);
  call->Say(cut);
  call->Finish(FinishReason::kLength);
  const Told told = Read(client);
  EXPECT_EQ(told.message.delta().text(), cut);
  EXPECT_EQ(told.finished.tool_calls_size(), 0);
  EXPECT_TRUE(told.message.delta().tool_calls().rbegin()->withdrawn());
}

TEST_F(ToolsTest, ThePromptMayHaveBegunToReason) {
  engine_->AnswerAs(MarkedForm(), /*in_reasoning=*/true);
  v1::GenerateRequest request = AskForWeather();
  request.mutable_chat()->clear_tools();
  request.mutable_output()->set_reasoning(true);
  ClientCall client(*stub_);
  client.Start(request);
  const auto call = engine_->TakeAndStart();
  call->Say("Hm.\n</think>\n\nSunny.");
  call->Finish();
  const Told told = Read(client);
  EXPECT_EQ(told.message.delta().reasoning(), "Hm.");
  EXPECT_EQ(told.message.delta().text(), "Sunny.");
}

TEST_F(ToolsTest, WithoutToolsAnswersComeAsTheyAre) {
  v1::GenerateRequest request = AskForWeather();
  request.mutable_chat()->clear_tools();
  ClientCall client(*stub_);
  client.Start(request);
  const auto call = engine_->TakeAndStart();
  EXPECT_TRUE(call->request().output.marks.empty());
  call->Say(kCall);
  call->Finish();
  EXPECT_EQ(Read(client).message.delta().text(), kCall);
}

TEST_F(ToolsTest, CallsThatMustBeAreEnforced) {
  v1::GenerateRequest request = AskForWeather();
  request.mutable_chat()->mutable_tool_choice()->set_name("weather");
  ClientCall client(*stub_);
  client.Start(request);
  const auto call = engine_->TakeAndStart();
  ASSERT_NE(call->request().format, nullptr);
  EXPECT_EQ(call->request().format->format().kind, AnswerFormatKind::kStructuralTag);
  EXPECT_EQ(call->request().format->format().reasoning_end, "</think>");
  call->Say(kCall);
  call->Finish();
  EXPECT_EQ(Read(client).finished.tool_calls_size(), 1);
}

TEST_F(ToolsTest, CallsThatCannotBeEnforcedNameTheTools) {
  v1::GenerateRequest request = AskForWeather();
  request.mutable_chat()->mutable_tool_choice()->set_name("weather");
  for (const auto& [code, reason] :
       {std::pair{absl::StatusCode::kInvalidArgument, "INVALID_FIELD"},
        std::pair{absl::StatusCode::kDeadlineExceeded, "FORMAT_TOO_SLOW"},
        std::pair{absl::StatusCode::kResourceExhausted, "FORMAT_TOO_LARGE"}}) {
    engine_->formats().Refuse(MakeError(code, "format: no", {.reason = reason, .field = "format"}));
    const grpc::Status status = ClientCall(*stub_).Refusal(request);
    EXPECT_EQ(ReasonOf(status), reason);
    EXPECT_EQ(status.error_message(), "chat.tools: calls of them cannot be enforced: format: no");
  }
}

TEST_F(ToolsTest, ToolsThatTheModelDoesNotKnowAreRefusedByName) {
  engine_->AnswerAs({});
  ClientCall client(*stub_);
  client.Start(AskForWeather());
  client.ReadText();
  const grpc::Status status = client.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(status), "CHAT_UNSUPPORTED");
}

}  // namespace
}  // namespace eta::testing
