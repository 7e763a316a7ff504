// `etactl chat` as a user runs it, against the built server.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/process/ctl_process.h"
#include "tests/testing/service/chat_server.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

class EtactlChatProcessTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new ChatServer(); }
  static void TearDownTestSuite() { delete server_; }
  void SetUp() override { ASSERT_TRUE(server_->server().up()); }

  static CtlProcess::Exit Chat(const std::vector<std::string>& more,
                               const std::string& input = "") {
    std::vector<std::string> arguments = {"chat", "--server",     Address(), "--temperature",
                                          "0",    "--max_tokens", "5",       "--ignore_eos"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return CtlProcess(arguments, input).AwaitExit();
  }
  static std::string Address() { return server_->server().address(); }

  static inline ChatServer* server_ = nullptr;
};

TEST_F(EtactlChatProcessTest, ShowsEachAnswerAndItsStatistics) {
  const auto exit = Chat({"--message", "Hello", "--message", "Go on"});
  EXPECT_EQ(exit.code, 0) << exit.errors;
  EXPECT_GT(exit.output.size(), 2u);
  EXPECT_EQ(exit.output.back(), '\n');
  const std::string line =
      "5 tokens, [0-9.]+ tok/s, first after .+ \\(prompt [0-9]+, cached [0-9]+\\), .+\n";
  EXPECT_THAT(exit.errors, MatchesRegex(line + line));
}

TEST_F(EtactlChatProcessTest, LinesOfStandardInputAreMessages) {
  const auto given = Chat({"--quiet", "--message", "Hello", "--message", "Go on"});
  EXPECT_EQ(given.code, 0) << given.errors;
  EXPECT_EQ(Chat({"--quiet", "Hello", "--message", "Go on"}).output, given.output);
  EXPECT_EQ(Chat({"--quiet", "-"}, "Hello\nGo on\n").output, given.output);
  const auto read = Chat({"--quiet"}, "Hello\n\nGo on\n");
  EXPECT_EQ(read.code, 0) << read.errors;
  EXPECT_EQ(read.output, given.output);
  EXPECT_EQ(read.errors, "");
}

TEST_F(EtactlChatProcessTest, SeesWhatWasSaidBefore) {
  const auto lengths = [](const CtlProcess::Exit& exit) {
    std::vector<int> prompts;
    for (const auto& event : JsonLines(exit.output)) {
      if (event.contains("started")) prompts.push_back(event["started"]["prompt_tokens"]);
    }
    return prompts;
  };
  const auto chat =
      lengths(Chat({"--json"}, "Hello\nHello\n/clear\nHello\n/system Brief.\nHello\n"));
  ASSERT_THAT(chat, SizeIs(4));
  EXPECT_GT(chat[1], chat[0]);
  EXPECT_EQ(chat[2], chat[0]);
  EXPECT_GT(chat[3], chat[1]);
  const auto system = lengths(Chat({"--json", "--system", "Brief.", "--message", "Hello"}));
  ASSERT_THAT(system, SizeIs(1));
  EXPECT_GT(system[0], chat[0]);
}

TEST_F(EtactlChatProcessTest, GoesOnFromAFile) {
  const TempFolder folder;
  const std::string file = folder.path() + "/chat.jsonl";
  const auto together = Chat({"--quiet", "--message", "Hello", "--message", "Go on"});
  const auto first = Chat({"--quiet", "--history", file, "--message", "Hello"});
  EXPECT_EQ(first.code, 0) << first.errors;
  EXPECT_THAT(JsonLines(ReadFile(file)), SizeIs(2));
  const auto second = Chat({"--quiet", "--history", file, "--message", "Go on"});
  EXPECT_EQ(first.output + second.output, together.output);
  const auto lines = JsonLines(ReadFile(file));
  ASSERT_THAT(lines, SizeIs(4));
  EXPECT_EQ(lines[2]["role"], "user");
  EXPECT_EQ(lines[2]["content"], "Go on");
  EXPECT_EQ(lines[3]["role"], "assistant");
}

TEST_F(EtactlChatProcessTest, SaysWhatIsRefused) {
  const auto field = Chat({"--top_p", "2", "--message", "Hello", "--message", "Go on"});
  EXPECT_EQ(field.code, 4);
  EXPECT_EQ(field.output, "");
  EXPECT_THAT(field.errors, HasSubstr("[reason INVALID_FIELD, field sampling.top_p]"));

  const auto variables = Chat({"--variables", "[1]", "--message", "Hello"});
  EXPECT_EQ(variables.code, 4);
  EXPECT_THAT(variables.errors, HasSubstr("field chat.variables"));

  const auto command = Chat({}, "/nonsense\n");
  EXPECT_EQ(command.code, 2);
  EXPECT_THAT(command.errors, HasSubstr("/nonsense"));

  const TempFolder folder;
  const auto history = Chat({"--history", folder.Write("chat.jsonl", "x\n"), "--message", "Hello"});
  EXPECT_EQ(history.code, 2);
  EXPECT_THAT(history.errors, HasSubstr("chat.jsonl:1"));

  const auto nobody = CtlProcess({"chat", "--server", "unix:" + folder.path() + "/nobody.sock",
                                  "--message", "Hello"})
                          .AwaitExit();
  EXPECT_EQ(nobody.code, 3);
}

TEST_F(EtactlChatProcessTest, StopsAtCtrlC) {
  CtlProcess ctl({"chat", "--server", Address(), "--max_tokens", "16000", "--ignore_eos",
                  "--message", "Hello", "--message", "never sent"});
  ASSERT_TRUE(ctl.AwaitOutput());
  ctl.Signal(SIGINT);
  const auto exit = ctl.AwaitExit();
  EXPECT_EQ(exit.code, 130) << exit.errors;
  EXPECT_EQ(exit.errors, "");
}

}  // namespace
}  // namespace eta::testing
