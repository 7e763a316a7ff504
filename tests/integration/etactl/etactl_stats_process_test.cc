// `etactl stats` as a user runs it, against the shipped server.
#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/process/ctl_process.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;

class EtactlStatsProcessTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(address_.empty()) << server_.AwaitExit().errors; }

  std::vector<std::string> With(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"stats", "--server", address_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  CtlProcess::Exit Stats(const std::vector<std::string>& more = {}) const {
    return CtlProcess(With(more)).AwaitExit();
  }
  // Generates five tokens and returns the last object of the output.
  nlohmann::json Generate(const std::string& attention) const {
    const auto exit = CtlProcess({"generate", "--server", address_, "--json", "--attention",
                                  attention, "--max_tokens", "5", "--ignore_eos", "Once upon"})
                          .AwaitExit();
    EXPECT_EQ(exit.code, 0) << exit.errors;
    return JsonLines(exit.output).back()["finished"];
  }

  const TinyModel model_;
  ServerProcess server_{ETA_BINARY_DIR "/eta-server",
                        {"--model", model_.path(), "--model_name", "tiny", "--listen",
                         "127.0.0.1:0", "--kv_pool_bytes", "16777216"}};
  const std::string address_ = server_.AwaitAddress();
};

TEST_F(EtactlStatsProcessTest, ShowsTheFiguresOfTheAnswersAsJsonAndAsText) {
  EXPECT_THAT(Stats().output, HasSubstr("nothing was decoded yet"));
  const nlohmann::json finished = Generate("dynamic");
  const auto exit = Stats({"--json", "--layers"});
  EXPECT_EQ(exit.code, 0) << exit.errors;
  const auto lines = JsonLines(exit.output);
  ASSERT_THAT(lines, SizeIs(1));
  const nlohmann::json& stats = lines[0];
  EXPECT_EQ(stats["server"]["state"], "SERVER_STATE_SERVING");
  EXPECT_EQ(stats["server"]["model"], "tiny");
  EXPECT_EQ(stats["load"]["output_tokens"], "5");
  ASSERT_THAT(stats["attention"], SizeIs(1));
  const nlohmann::json& totals = stats["attention"][0]["totals"];
  for (const char* field : {"decode_steps", "keys_attended", "keys_eligible", "keys_read",
                            "keys_cached", "kv_bytes_read", "kv_bytes_dense", "index_bytes_read"}) {
    EXPECT_EQ(totals[field], finished["attention"][field]) << field;
  }
  EXPECT_THAT(stats["attention"][0]["layers"], SizeIs(2));

  Generate("full");
  const auto text = Stats({"--layers"});
  EXPECT_EQ(text.code, 0) << text.errors;
  EXPECT_THAT(
      text.output,
      AllOf(MatchesRegex("tiny: serving, up [0-9]+ s; eta-server [0-9.]+, (.|\n)*"),
            HasSubstr("2 layers, 4 heads over 2 KV heads"), HasSubstr("running 0, waiting 0"),
            HasSubstr("10 generated"), HasSubstr("first token  1 min"),
            HasSubstr("full          default      4  1.000  1.000"),
            HasSubstr("dynamic of default by layer, since the start\n"),
            HasSubstr("default      ")));
  EXPECT_THAT(text.output, Not(HasSubstr("\033")));
}

TEST_F(EtactlStatsProcessTest, WatchPrintsSnapshotsUntilItIsInterrupted) {
  CtlProcess watch(With({"--watch", "--interval", "0.1", "--json"}));
  ASSERT_TRUE(watch.AwaitOutput());
  Generate("full");
  watch.Signal(SIGINT);
  const auto exit = watch.AwaitExit();
  EXPECT_EQ(exit.code, 130);
  const auto lines = JsonLines(exit.output);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.front()["attention"], IsEmpty());
}

TEST_F(EtactlStatsProcessTest, WatchOnAPipePrintsPlainText) {
  CtlProcess watch(With({"--watch", "--interval", "0.1"}));
  ASSERT_TRUE(watch.AwaitOutput());
  watch.Signal(SIGTERM);
  const auto exit = watch.AwaitExit();
  EXPECT_EQ(exit.code, 130);
  EXPECT_THAT(exit.output, AllOf(HasSubstr("tiny: serving"), Not(HasSubstr("\033"))));
}

TEST_F(EtactlStatsProcessTest, WatchEndsWhenTheServerHasDrained) {
  CtlProcess watch(With({"--watch", "--interval", "0.1"}));
  ASSERT_TRUE(watch.AwaitOutput());
  server_.Signal(SIGTERM);
  const auto exit = watch.AwaitExit();
  EXPECT_EQ(exit.code, 3);
  EXPECT_THAT(exit.errors, HasSubstr("DRAINING"));
  EXPECT_EQ(server_.AwaitExit().code, 0);
}

TEST_F(EtactlStatsProcessTest, SaysWhatIsWrongWithItsFlags) {
  const auto too_quick = Stats({"--watch", "--interval", "0.01"});
  EXPECT_EQ(too_quick.code, 4);
  EXPECT_THAT(too_quick.errors, AllOf(HasSubstr("interval"), HasSubstr("100 ms to 60 s")));
  EXPECT_EQ(Stats({"--interval", "1"}).code, 2);
  EXPECT_EQ(Stats({"--watch", "--interval", "soon"}).code, 2);
  const auto bad_tenant = Stats({"--tenant", "two words"});
  EXPECT_EQ(bad_tenant.code, 4);
  EXPECT_THAT(bad_tenant.errors, HasSubstr("tenant"));
}

TEST_F(EtactlStatsProcessTest, SaysThatNobodyListens) {
  const TempFolder folder;
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--watch"}}) {
    std::vector<std::string> arguments = {"stats", "--server",
                                          "unix:" + folder.path() + "/nobody.sock"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(CtlProcess(arguments).AwaitExit().code, 3);
  }
}

}  // namespace
}  // namespace eta::testing
