// Chats on the built server, and what it tells of them.
#include <csignal>
#include <string>

#include "gmock/gmock.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/service/chat_server.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ChatProcess, AnswersAndKeepsWhatWasSaidToItself) {
  ChatServer server({"--log_level", "debug"});
  ASSERT_TRUE(server.server().up());
  const std::string secret = "the password is xyzzy";
  v1::GenerateRequest request = Say(secret);
  request.mutable_chat()->set_variables(R"({"style": "plugh"})");
  const auto first = server.Ask(request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_GT(first.started.prompt_tokens(), 5);
  EXPECT_EQ(first.finished.usage().prompt_tokens(), first.started.prompt_tokens());
  EXPECT_EQ(server.Ask(request).text, first.text);

  AddMessage(request, v1::CHAT_ROLE_ASSISTANT, first.text);
  AddMessage(request, v1::CHAT_ROLE_USER, "And now?");
  const auto second = server.Ask(request);
  EXPECT_GT(second.started.prompt_tokens(), first.started.prompt_tokens());
  EXPECT_GT(second.started.cached_tokens(), 0) << "the history is shared";

  AddMessage(request, v1::CHAT_ROLE_SYSTEM, secret);
  const grpc::Status refused = server.Ask(request).status;
  EXPECT_THAT(refused.error_message(), HasSubstr("a system message must be the first, not: the"));

  grpc::ClientContext context;
  v1::Stats stats;
  ASSERT_TRUE(server.server().stub->Stats(&context, {}, &stats).ok());
  EXPECT_TRUE(stats.server().chat());

  server.server().process().Signal(SIGTERM);
  const auto exit = server.server().process().AwaitExit();
  EXPECT_EQ(exit.code, 0);
  EXPECT_THAT(exit.errors, HasSubstr("the chat template makes no prompt of it"));
  EXPECT_THAT(exit.errors, Not(HasSubstr("xyzzy")));
  EXPECT_THAT(exit.errors, Not(HasSubstr("plugh")));
}

TEST(ChatProcess, GoesByTheTemplateThatIsGiven) {
  const TempFolder folder;
  const std::string file = folder.Write("chat.jinja", "{{ messages[-1]['content'] }}");
  ChatServer server({"--chat_template", file});
  ASSERT_TRUE(server.server().up());
  const auto given = server.Ask(Say("Hello"));
  ASSERT_TRUE(given.status.ok()) << given.status.error_message();
  v1::GenerateRequest text = Say("");
  text.set_text("Hello");
  EXPECT_EQ(given.started.prompt_tokens() + 1, server.Ask(text).started.prompt_tokens())
      << "a text has the beginning-of-text token before it";
}

}  // namespace
}  // namespace eta::testing
