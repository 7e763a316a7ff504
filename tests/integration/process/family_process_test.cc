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

TEST(FamilyProcessTest, WindowsAreServedPastTheirLength) {
  for (const std::string model : {"mistral-sliding", "qwen2-sliding", "qwen3-sliding"}) {
    SCOPED_TRACE(model);
    const TempFolder folder;
    Replica server(kRoot + model, folder.path() + "/profiles.db");
    ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
    EXPECT_EQ(Answer(server, FamilyPrompt(400, 20)).size(), 20u);
    EXPECT_TRUE(server.status.ok()) << server.status.error_message();
    v1::GenerateRequest pinned = FamilyPrompt(400, 6);
    pinned.mutable_attention()->set_pinned_blocks(3);
    const bool has_full = model != "mistral-sliding";
    EXPECT_EQ(Answer(server, pinned).size(), has_full ? 6u : 0u);
    if (!has_full) {
      EXPECT_EQ(server.status.error_code(), StatusCode::INVALID_ARGUMENT);
      EXPECT_EQ(FieldOf(server.status), "attention.pinned_blocks");
      EXPECT_THAT(server.status.error_message(), HasSubstr("a window of 50 tokens"));
    }
    server.process().Signal(SIGTERM);
    const auto start = LogLines(server.process().AwaitExit().errors, "start").front();
    EXPECT_THAT(start["message"].get<std::string>(), HasSubstr(" layers see a window of "));
  }
}

}  // namespace
}  // namespace eta::testing
