// etactl as a user runs it, against the shipped server: its output and its exit codes.
#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/process/ctl_process.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class EtactlProcessTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ =
        new ServerProcess(ETA_BINARY_DIR "/eta-server",
                          {"--model", ETA_SOURCE_DIR "/models/eta-27m", "--listen", "127.0.0.1:0"});
    address_ = new std::string(server_->AwaitAddress());
  }
  static void TearDownTestSuite() {
    delete server_;
    delete address_;
  }
  void SetUp() override { ASSERT_FALSE(address_->empty()) << server_->AwaitExit().errors; }

  static std::vector<std::string> With(std::vector<std::string> more, const std::string& command) {
    more.insert(more.begin(), {command, "--server", *address_});
    return more;
  }
  static CtlProcess::Exit Generate(std::vector<std::string> more, const std::string& input = "") {
    return CtlProcess(With(std::move(more), "generate"), input).AwaitExit();
  }

  static ServerProcess* server_;
  static std::string* address_;
};

ServerProcess* EtactlProcessTest::server_ = nullptr;
std::string* EtactlProcessTest::address_ = nullptr;

const std::vector<std::string> kShort = {"--temperature", "0", "--max_tokens", "5", "--ignore_eos"};
const std::vector<std::string> kLong = {"--max_tokens", "16000", "--ignore_eos"};

std::vector<std::string> Joined(std::vector<std::string> flags,
                                const std::vector<std::string>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

TEST_F(EtactlProcessTest, ShowsTheAnswerAndOneLineOfStatistics) {
  const auto exit = Generate(Joined(kShort, {"The capital of France is"}));
  EXPECT_EQ(exit.code, 0) << exit.errors;
  EXPECT_GT(exit.output.size(), 5u);
  EXPECT_EQ(exit.output.back(), '\n');
  EXPECT_THAT(exit.errors, MatchesRegex("5 tokens, [0-9.]+ tok/s, first after .+ \\(prompt [0-9]+, "
                                        "cached [0-9]+\\), dynamic thresholds, .+, index .+\n"));
}

TEST_F(EtactlProcessTest, ReadsThePromptFromStandardInput) {
  const std::string prompt = "The capital of France is";
  const std::vector<std::string> quiet = Joined(kShort, {"--quiet"});
  const auto given = Generate(Joined(quiet, {prompt}));
  EXPECT_EQ(given.errors, "");
  EXPECT_EQ(Generate(quiet, prompt).output, given.output);
  EXPECT_EQ(Generate(quiet, prompt + "\n").output, given.output) << "as echo writes it";
  EXPECT_EQ(Generate(quiet, prompt + "\r\n").output, given.output);
  EXPECT_EQ(Generate(Joined(quiet, {"-"}), prompt).output, given.output);
  EXPECT_NE(Generate(quiet, "Water is made of").output, given.output);
}

TEST_F(EtactlProcessTest, WritesOneJsonObjectPerEvent) {
  const auto exit =
      Generate(Joined(kShort, {"--json", "--output_ids", "The capital of France is"}));
  EXPECT_EQ(exit.code, 0) << exit.errors;
  const auto lines = JsonLines(exit.output);
  ASSERT_GE(lines.size(), 3u) << exit.output;
  EXPECT_TRUE(lines.front().contains("started"));
  EXPECT_EQ(lines.front()["started"]["model"], "eta-27m");
  EXPECT_EQ(lines.front()["started"]["max_tokens"], 5);
  size_t ids = 0;
  for (const auto& line : lines) {
    if (line.contains("delta")) ids += line["delta"]["token_ids"].size();
  }
  EXPECT_EQ(ids, 5u);
  ASSERT_TRUE(lines.back().contains("finished"));
  EXPECT_EQ(lines.back()["finished"]["usage"]["output_tokens"], 5);
}

TEST_F(EtactlProcessTest, SaysUsageForABadCommandLine) {
  using Flags = std::vector<std::string>;
  for (const auto& [flags, named] : std::vector<std::pair<Flags, std::string>>{
           {{"--nonsense", "x"}, "--nonsense"},
           {{"--top_p", "much", "x"}, "--top_p"},
           {{"--logprobs", "2", "x"}, "--json"},
           {{"--file", "/nowhere/prompt.txt"}, "/nowhere/prompt.txt"}}) {
    const auto exit = Generate(flags);
    EXPECT_EQ(exit.code, 2) << flags[0];
    EXPECT_EQ(exit.output, "");
    EXPECT_THAT(exit.errors, HasSubstr(named));
  }
}

// bad input: etactl | an option or command that does not exist, an argument too many | exit code 2;
//   the word named that is wrong
TEST_F(EtactlProcessTest, NamesTheWordThatIsWrong) {
  using Words = std::vector<std::string>;
  for (const auto& [words, sentence] : std::vector<std::pair<Words, std::string>>{
           {{"generate", "--nope", "3", "Hi"},
            "--nope: no such option (see etactl generate --help)"},
           {{"generate", "Hi", "--max-tokens=3"},
            "--max-tokens: no such option; did you mean --max_tokens? (see etactl generate "
            "--help)"},
           {{"generate", "Once", "upon", "a"},
            "upon: one argument too many; a text of several words needs quotes (see etactl "
            "generate --help)"},
           {{"calibrate", "legal", "--sampels", "x"},
            "--sampels: no such option; did you mean --samples? (see etactl calibrate --help)"},
           {{"profiles", "list", "--jsn"},
            "--jsn: no such option; did you mean --json? (see etactl profiles list --help)"},
           {{"--sever", "x", "generate", "Hi"},
            "--sever: no such option; did you mean --server? (see etactl generate --help)"},
           {{"generat", "Hi"}, "generat: no such command (see etactl --help)"},
           {{"generate", "--file"}, "--file: 1 required TEXT missing (see etactl generate --help)"},
           {{"--server", "a", "generate", "--server", "b", "Hi"},
            "--server: At Most 1 required but received 2 (see etactl generate --help)"}}) {
    const auto exit = CtlProcess(words).AwaitExit();
    EXPECT_EQ(exit.code, 2) << words[0];
    EXPECT_EQ(exit.errors, "etactl: " + sentence + "\n");
  }
}

TEST_F(EtactlProcessTest, TakesTheServerBeforeTheCommandToo) {
  const std::string prompt = "The capital of France is";
  const auto behind = Generate(Joined(kShort, {"--quiet", prompt}));
  const auto before =
      CtlProcess(Joined({"--server", *address_, "generate", "--quiet", prompt}, kShort))
          .AwaitExit();
  EXPECT_EQ(before.code, 0) << before.errors;
  EXPECT_EQ(before.output, behind.output);
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"health"}, {"stats"}, {"log-level", "info"}}) {
    const auto exit = CtlProcess(Joined({"--server", *address_}, command)).AwaitExit();
    EXPECT_EQ(exit.code, 0) << command[0] << exit.errors;
  }
  const auto profiles = CtlProcess({"--server", *address_, "profiles", "list"}).AwaitExit();
  EXPECT_THAT(profiles.errors, HasSubstr("STORE_NOT_CONFIGURED")) << "it was reached";
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"generate"}, {"chat"}, {"calibrate"}, {"stats"}}) {
    EXPECT_THAT(CtlProcess(Joined(command, {"--help"})).AwaitExit().output,
                HasSubstr("Server, before the command or behind it:"));
  }
}

TEST_F(EtactlProcessTest, TokenizesAndReadsBack) {
  const auto run = [](const std::string& command, const std::vector<std::string>& more,
                      const std::string& input = "") {
    return CtlProcess(With(more, command), input).AwaitExit();
  };
  const std::string text = "The capital  of France";
  const auto ids = run("tokenize", {text});
  ASSERT_EQ(ids.code, 0) << ids.errors;
  EXPECT_THAT(ids.output, MatchesRegex("1(,[0-9]+)+\n"));
  EXPECT_EQ(run("tokenize", {}, text + "\n").output, ids.output);
  EXPECT_EQ(run("tokenize", {"--no_beginning", text}).output, ids.output.substr(2));
  EXPECT_EQ(run("detokenize", {ids.output}).output, text);
  EXPECT_EQ(run("detokenize", {"--special_tokens", "-"}, ids.output).output, "<s>" + text);
  const auto generated = Generate(Joined(kShort, {"--quiet", "--token_ids", ids.output}));
  EXPECT_EQ(generated.output, Generate(Joined(kShort, {"--quiet", text})).output);
  const auto pieces = run("tokenize", {"--pieces", text}).output;
  EXPECT_THAT(pieces, MatchesRegex("1\t\"<s>\"\tspecial\n([0-9]+\t\".*\"\n)+"));
  const auto count = std::count(pieces.begin(), pieces.end(), '\n');
  EXPECT_EQ(run("tokenize", {"--count", text}).output, std::to_string(count) + "\n");
  EXPECT_EQ(run("tokenize", {"--file", "/nowhere/text"}).code, 2);
  EXPECT_EQ(run("detokenize", {"1,x"}).code, 2);
  const auto refused = run("detokenize", {"999999"});
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.errors, HasSubstr("field token_ids.ids[0]"));
}

TEST_F(EtactlProcessTest, SaysThatNobodyListens) {
  const TempFolder folder;
  const std::string nobody = "unix:" + folder.path() + "/nobody.sock";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"generate", "--server", nobody, "x"},
        {"health", "--server", nobody}}) {
    const auto exit = CtlProcess(command).AwaitExit();
    EXPECT_EQ(exit.code, 3) << command[0];
    EXPECT_EQ(exit.output, "");
    EXPECT_THAT(exit.errors, HasSubstr("etactl: UNAVAILABLE: "));
  }
}

TEST_F(EtactlProcessTest, NamesTheFieldThatTheServerRefuses) {
  const auto exit = Generate({"--top_p", "2", "x"});
  EXPECT_EQ(exit.code, 4);
  EXPECT_EQ(exit.output, "");
  EXPECT_THAT(exit.errors, HasSubstr("etactl: INVALID_ARGUMENT: "));
  EXPECT_THAT(exit.errors, HasSubstr("[reason INVALID_FIELD, field sampling.top_p]"));

  const auto json = Generate({"--json", "--top_p", "2", "x"});
  EXPECT_EQ(json.code, 4);
  const auto lines = JsonLines(json.output);
  ASSERT_EQ(lines.size(), 1u) << json.output;
  EXPECT_EQ(lines[0]["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(lines[0]["error"]["reason"], "INVALID_FIELD");
  EXPECT_EQ(lines[0]["error"]["field"], "sampling.top_p");
}

TEST_F(EtactlProcessTest, EndsWhenTheTimeIsUp) {
  const auto exit = Generate(Joined(kLong, {"--deadline", "1", "Once upon a time"}));
  EXPECT_EQ(exit.code, 5);
  EXPECT_GT(exit.output.size(), 1u) << "what came in time is shown";
  EXPECT_THAT(exit.errors, HasSubstr("etactl: DEADLINE_EXCEEDED: "));
}

TEST_F(EtactlProcessTest, StopsAtCtrlC) {
  CtlProcess ctl(With(Joined(kLong, {"Once upon a time"}), "generate"));
  ASSERT_TRUE(ctl.AwaitOutput());
  ctl.Signal(SIGINT);
  const auto exit = ctl.AwaitExit();
  EXPECT_EQ(exit.code, 130) << exit.errors;
  EXPECT_GT(exit.output.size(), 1u);
  EXPECT_EQ(exit.errors, "") << "whoever stops it needs no error";
}

TEST_F(EtactlProcessTest, TellsHealth) {
  const auto serving = CtlProcess(With({}, "health")).AwaitExit();
  EXPECT_EQ(serving.code, 0) << serving.errors;
  EXPECT_EQ(serving.output, "SERVING\n");
  EXPECT_EQ(CtlProcess(With({"--service", "eta.v1.EtaService"}, "health")).AwaitExit().code, 0);
  const auto unknown = CtlProcess(With({"--service", "nobody"}, "health")).AwaitExit();
  EXPECT_EQ(unknown.code, 4);
  EXPECT_THAT(unknown.errors, HasSubstr("NOT_FOUND"));
}

TEST_F(EtactlProcessTest, SetsTheLevelOfTheServersLog) {
  const auto debug = CtlProcess(With({"debug"}, "log-level")).AwaitExit();
  EXPECT_EQ(debug.code, 0) << debug.errors;
  EXPECT_EQ(debug.output, "debug (was info)\n");
  EXPECT_EQ(CtlProcess(With({"info"}, "log-level")).AwaitExit().output, "info (was debug)\n");
  EXPECT_EQ(CtlProcess(With({"loud"}, "log-level")).AwaitExit().code, 2);
}

}  // namespace
}  // namespace eta::testing
