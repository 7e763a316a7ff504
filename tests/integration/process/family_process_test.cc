// Small checkpoints of every family, as transformers saved them (tests/golden/families), in the
// built server. They take token ids only.
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/process/log_lines.h"
#include "tests/testing/process/model_server.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr const char* kRoot = ETA_SOURCE_DIR "/tests/golden/families/";
constexpr int kFamilyVocabulary = 257;
constexpr int kWindow = 176;  // of the models with a window

v1::GenerateRequest FamilyPrompt(int tokens, int max_tokens) {
  v1::GenerateRequest request;
  for (int i = 0; i < tokens; ++i) {
    request.mutable_token_ids()->add_ids(1 + (i * i * 31 + i) % (kFamilyVocabulary - 1));
  }
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0.0f);
  request.mutable_output()->set_text(false);
  request.mutable_output()->set_token_ids(true);
  return request;
}

std::vector<int32_t> Answer(Replica& server, const v1::GenerateRequest& request) {
  ClientCall call(*server.stub);
  call.Start(request);
  std::vector<int32_t> ids = ReadIds(call);
  server.status = call.Finish();
  return ids;
}

TEST(FamilyProcessTest, EveryFamilyAnswers) {
  for (const auto& entry : std::filesystem::directory_iterator(kRoot)) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename().string());
    Replica server(entry.path().string(), "");
    ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
    const std::vector<int32_t> first = Answer(server, FamilyPrompt(150, 20));
    ASSERT_TRUE(server.status.ok()) << server.status.error_message();
    EXPECT_EQ(first.size(), 20u);
    EXPECT_EQ(Answer(server, FamilyPrompt(150, 20)), first) << "with a shared prefix";
  }
}

// SmolLM2's vocabulary has no token for six control characters, and nothing begins its texts: such
// a prompt would be none.
TEST(FamilyProcessTest, AByteThatNoTokenStandsForIsRefusedAndEndsNothing) {
  Replica server(ETA_SOURCE_DIR "/models/smollm2-eta/SmolLM2-135M-Instruct-ETA.Q8_0.gguf", "",
                 {"--max_running", "1"});
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  for (const std::string text : {"\x04", "\x06", "\x13", "\x14", "\x16", "\x1d", "a\x04"}) {
    v1::GenerateRequest request;
    request.set_text(text);
    EXPECT_TRUE(Answer(server, request).empty());
    EXPECT_EQ(server.status.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(FieldOf(server.status), "text");
    EXPECT_THAT(server.status.error_message(),
                HasSubstr("at offset " + std::to_string(text.size() - 1)));
  }
  v1::GenerateRequest chat;
  v1::ChatMessage& message = *chat.mutable_chat()->add_messages();
  message.set_role(v1::CHAT_ROLE_USER);
  message.set_text("ab\x16");
  EXPECT_TRUE(Answer(server, chat).empty());
  EXPECT_EQ(FieldOf(server.status), "chat.messages[0].text") << server.status.error_message();
  v1::GenerateRequest good = FamilyPrompt(4, 2);
  EXPECT_EQ(Answer(server, good).size(), 2u) << server.status.error_message();
}

// bad input: Prompts | past the model's sliding window, within --max_context | INVALID_ARGUMENT,
//   CONTEXT_TOO_LONG, the window as `max_context`
TEST(FamilyProcessTest, AWindowIsAHardLimit) {
  for (const std::string model : {"mistral-window", "qwen2-window", "smollm3-window"}) {
    SCOPED_TRACE(model);
    const TempFolder folder;
    Replica server(kRoot + model, folder.path() + "/profiles.db");
    ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
    EXPECT_EQ(Answer(server, FamilyPrompt(kWindow - 6, 6)).size(), 6u);
    EXPECT_TRUE(server.status.ok()) << server.status.error_message();
    for (const v1::GenerateRequest& over :
         {FamilyPrompt(kWindow - 6, 7), FamilyPrompt(kWindow, 1), FamilyPrompt(kWindow + 1, 1)}) {
      EXPECT_TRUE(Answer(server, over).empty());
      EXPECT_EQ(server.status.error_code(), StatusCode::INVALID_ARGUMENT);
      EXPECT_EQ(ReasonOf(server.status), "CONTEXT_TOO_LONG");
      EXPECT_EQ(MetadataOf(server.status, "max_context"), std::to_string(kWindow));
    }
    v1::CalibrateRequest calibration;
    calibration.set_name("over");
    for (int i = 0; i < 4; ++i) {
      auto* ids = calibration.add_samples()->mutable_token_ids();
      for (int j = 0; j < 2 * kWindow; ++j) ids->add_ids(1 + (i * 53 + j * j) % 200);
    }
    calibration.mutable_target()->set_head_density(0.5);
    calibration.set_sequence_tokens(kWindow + 1);
    EXPECT_FALSE(server.Calibrate(calibration).has_value());
    EXPECT_EQ(server.status.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(FieldOf(server.status), "sequence_tokens") << server.status.error_message();

    server.process().Signal(SIGTERM);
    const auto start = LogLines(server.process().AwaitExit().errors, "start").front();
    EXPECT_EQ(start["max_context"], kWindow);
    EXPECT_THAT(start["message"].get<std::string>(),
                HasSubstr("the model's sliding window limits a request to 176 tokens"));
  }
}

}  // namespace
}  // namespace eta::testing
