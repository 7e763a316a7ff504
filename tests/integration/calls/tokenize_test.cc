// Tokenize and Detokenize over a real socket.
#include "eta/v1/service.grpc.pb.h"
#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/process/call_records.h"
#include "tests/testing/service/service_fixture.h"

namespace eta::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// The puppet's vocabulary: three special tokens, the second of them in front of a text, and bytes.
class TokenizeTest : public ServiceTest {
 protected:
  void SetUp() override {
    call_observers_ = {&records_};
    ServiceTest::SetUp();
  }
  grpc::Status Tokenize(const v1::TokenizeRequest& request) {
    grpc::ClientContext context;
    return stub_->Tokenize(&context, request, &tokenized_);
  }
  grpc::Status Detokenize(const v1::DetokenizeRequest& request) {
    grpc::ClientContext context;
    return stub_->Detokenize(&context, request, &detokenized_);
  }

  CallRecords records_;
  v1::TokenizeResponse tokenized_;
  v1::DetokenizeResponse detokenized_;
};

TEST_F(TokenizeTest, AnswersTheIdsOfAPrompt) {
  v1::TokenizeRequest request;
  request.set_text("Hi");
  ASSERT_TRUE(Tokenize(request).ok());
  EXPECT_EQ(tokenized_.model(), engine_->info().model_name);
  EXPECT_THAT(tokenized_.token_ids(), ElementsAre(1, 3 + 'H', 3 + 'i'));
  EXPECT_FALSE(tokenized_.has_token_texts());
  request.set_add_beginning(false);
  request.set_token_texts(true);
  ASSERT_TRUE(Tokenize(request).ok());
  EXPECT_THAT(tokenized_.token_ids(), ElementsAre(3 + 'H', 3 + 'i'));
  EXPECT_EQ(tokenized_.token_texts().text(), "Hi");
  EXPECT_THAT(tokenized_.token_texts().ends(), ElementsAre(1, 2));
  EXPECT_THAT(tokenized_.token_texts().special(), ElementsAre(false, false));

  v1::TokenizeRequest chat;
  v1::ChatMessage& message = *chat.mutable_chat()->add_messages();
  message.set_role(v1::CHAT_ROLE_USER);
  message.set_text("Hi");
  ASSERT_TRUE(Tokenize(chat).ok());
  EXPECT_THAT(tokenized_.token_ids(), SizeIs(std::string("user: Hi\n").size() + 1));
  const auto records = records_.Await(3);
  EXPECT_EQ(records.back().method, "Tokenize");
  EXPECT_EQ(records.back().tenant, "default");
  EXPECT_EQ(engine_->submissions(), 0) << "there is no answer";
}

TEST_F(TokenizeTest, AnswersTheTextOfIds) {
  v1::DetokenizeRequest request;
  for (const int32_t id : {1, 3 + 'H', 3 + 'i'}) request.mutable_token_ids()->add_ids(id);
  ASSERT_TRUE(Detokenize(request).ok());
  EXPECT_EQ(detokenized_.text(), "Hi");
  request.set_special_tokens(true);
  request.set_token_texts(true);
  ASSERT_TRUE(Detokenize(request).ok());
  EXPECT_EQ(detokenized_.text(), "<1>Hi");
  EXPECT_EQ(detokenized_.token_texts().text(), "<1>Hi");
  EXPECT_THAT(detokenized_.token_texts().ends(), ElementsAre(3, 4, 5));
  EXPECT_THAT(detokenized_.token_texts().special(), ElementsAre(true, false, false));
}

// bad input: Prompts | Tokenize: no prompt, not UTF-8, too long; `parse_special`, `add_beginning`
//   with a chat | INVALID_ARGUMENT as of Generate, the field named |
//   BadInputTest.PromptsThatAreTokenizedAlone
TEST_F(TokenizeTest, RefusesAsGenerateDoes) {
  v1::TokenizeRequest text;
  text.set_model("another");
  text.set_text("Hi");
  EXPECT_EQ(ReasonOf(Tokenize(text)), "MODEL_NOT_FOUND");
  v1::DetokenizeRequest ids;
  ids.set_model("another");
  EXPECT_EQ(ReasonOf(Detokenize(ids)), "MODEL_NOT_FOUND");
  EXPECT_EQ(FieldOf(Tokenize(v1::TokenizeRequest())), "prompt");
  EXPECT_EQ(FieldOf(Detokenize(v1::DetokenizeRequest())), "token_ids.ids");
}

}  // namespace
}  // namespace eta::testing
