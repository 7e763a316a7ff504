// `etactl calibrate` and `etactl profiles` as a user runs them, against the shipped server.
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/net/tcp_proxy.h"
#include "tests/testing/process/ctl_process.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/process/page_reader.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

const std::string kSamples = ETA_SOURCE_DIR "/models/eta-27m/samples/";

class EtactlCalibrateProcessTest : public ::testing::Test {
 protected:
  EtactlCalibrateProcessTest()
      : server_(ETA_BINARY_DIR "/eta-server",
                {"--model", ETA_SOURCE_DIR "/models/eta-27m", "--listen", "127.0.0.1:0",
                 "--metrics_listen", "127.0.0.1:0", "--profile_store",
                 folder_.path() + "/profiles.db"}) {}

  void SetUp() override {
    const std::string metrics = server_.AwaitLine("metrics on ");
    address_ = server_.AwaitAddress();
    ASSERT_FALSE(address_.empty()) << server_.AwaitExit().errors;
    metrics_port_ = std::stoi(metrics.substr(metrics.rfind(':') + 1));
    WriteTexts(1500, texts_);
  }

  // Four texts, each its own document.
  static void WriteTexts(size_t bytes, const TempFolder& folder) {
    for (const char* title : {"elephant", "friction", "silver", "superman"}) {
      const std::string text = ReadFile(kSamples + "wiki/" + title + ".txt");
      ASSERT_GT(text.size(), bytes) << title;
      folder.Write(std::string(title) + ".txt", text.substr(0, bytes));
    }
  }

  CtlProcess::Exit Run(std::vector<std::string> arguments, const std::string& input = "") {
    return CtlProcess(With(std::move(arguments)), input).AwaitExit();
  }
  std::vector<std::string> With(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin() + 1, {"--server", address_});
    return arguments;
  }
  // Calibrates on four sequences of some 400 tokens: quick, and good only for tests. They are too
  // few for a verdict on a perplexity, and a profile of them may lose anything.
  CtlProcess::Exit Calibrate(const std::string& name,
                             std::vector<std::string> more = {"--target=match-dynamic"}) {
    more.push_back("--allow_loss");
    return CalibrateOn(texts_, name, std::move(more));
  }
  CtlProcess::Exit CalibrateOn(const TempFolder& texts, const std::string& name,
                               std::vector<std::string> more) {
    more.insert(more.begin(), {"calibrate", name, "--samples=" + texts.path()});
    return Run(more);
  }

  const TempFolder folder_, texts_;
  ServerProcess server_;
  std::string address_;
  int metrics_port_ = 0;
};

TEST_F(EtactlCalibrateProcessTest, CalibratesAndGeneratesWithTheProfile) {
  const auto calibrated =
      Calibrate("wiki", {"--label", "domain=wiki", "--z_recall=0.95", "--target=match-dynamic"});
  ASSERT_EQ(calibrated.code, 0) << calibrated.errors;
  EXPECT_THAT(
      calibrated.output,
      AllOf(HasSubstr("profile wiki@1, made 2"), HasSubstr("labels: domain=wiki\n"),
            HasSubstr("8 layers x 8 heads"), HasSubstr("z per head"),
            HasSubstr("documents: 3 calibrated on, 1 held out\n"),
            HasSubstr("calibrated on 3 sequences"), HasSubstr(", unverified on 1 held out ("),
            HasSubstr("\nfull "), HasSubstr("\ndynamic "), HasSubstr("\nfrozen "),
            HasSubstr("\nneedles: single "), HasSubstr("\nreads "),
            HasSubstr(" % (unverified: too few tokens for a verdict), ")));
  EXPECT_THAT(calibrated.errors,
              AllOf(HasSubstr("1/4 collecting scores"), HasSubstr("4/4 verifying, "),
                    HasSubstr(" tokens/s, about ")));
  EXPECT_THAT(calibrated.errors, Not(HasSubstr("\033"))) << "no terminal, no bar";

  const auto generated = Run({"generate", "--attention=profile:wiki", "--max_tokens=5",
                              "--ignore_eos", "--temperature=0", "Silver is"});
  EXPECT_EQ(generated.code, 0) << generated.errors;
  EXPECT_THAT(generated.errors, HasSubstr("profile wiki@1, "));
}

TEST_F(EtactlCalibrateProcessTest, WritesOneJsonObjectPerEvent) {
  const auto exit = Calibrate("wiki", {"--json", "--target=union-density=0.6"});
  ASSERT_EQ(exit.code, 0) << exit.errors;
  EXPECT_EQ(exit.errors, "");
  const auto lines = JsonLines(exit.output);
  ASSERT_GE(lines.size(), 2u);
  EXPECT_EQ(lines.front()["progress"]["phase"], "CALIBRATION_PHASE_COLLECT");
  const auto& profile = lines.back()["profile"];
  EXPECT_EQ(profile["name"], "wiki");
  EXPECT_EQ(profile["thresholds"].size(), 64u);
  EXPECT_EQ(profile["target"]["union_density"], 0.6);
  EXPECT_EQ(profile["evidence"]["held_out_sequences"], "1");
  EXPECT_EQ(profile["evidence"]["unverified"], true);
}

TEST_F(EtactlCalibrateProcessTest, ManagesProfiles) {
  ASSERT_EQ(Calibrate("wiki").code, 0);
  ASSERT_EQ(Calibrate("wiki", {"--expected_version=1", "--target=match-dynamic"}).code, 0);
  const auto alias = Run({"profiles", "alias", "wiki", "stable", "1"});
  EXPECT_EQ(alias.code, 0) << alias.errors;
  EXPECT_EQ(alias.output, "wiki@stable is wiki@1\n");
  EXPECT_THAT(Run({"profiles", "list"}).output,
              MatchesRegex("profile +newest +made +size +model\nwiki +2 .+B  [0-9a-f]{12}\n"));
  EXPECT_THAT(Run({"profiles", "versions", "wiki"}).output,
              MatchesRegex("version.+\n +2 .+B  [0-9a-f]{12}\n +1 .+B  [0-9a-f]{12}  stable\n"));
  EXPECT_THAT(Run({"profiles", "get", "wiki@stable"}).output, HasSubstr("profile wiki@1, "));
  EXPECT_EQ(JsonLines(Run({"profiles", "get", "wiki", "--json"}).output).at(0)["version"], "2");

  const auto file = Run({"profiles", "export", "wiki@stable"});
  ASSERT_EQ(file.code, 0) << file.errors;
  const auto imported =
      Run({"profiles", "import", "-", "--name=copy", "--create_only"}, file.output);
  EXPECT_EQ(imported.code, 0) << imported.errors;
  EXPECT_EQ(imported.output, "imported copy@1\n");
  const auto copy = JsonLines(Run({"profiles", "get", "copy", "--json"}).output).at(0);
  const auto original = JsonLines(Run({"profiles", "get", "wiki@1", "--json"}).output).at(0);
  EXPECT_EQ(copy["thresholds"], original["thresholds"]);
  EXPECT_EQ(copy["evidence"], original["evidence"]);

  EXPECT_EQ(Run({"profiles", "alias", "wiki", "stable", "--remove"}).code, 0);
  EXPECT_EQ(Run({"profiles", "delete", "wiki", "--expected_version=2"}).code, 0);
  const auto left = JsonLines(Run({"profiles", "list", "--json"}).output);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0]["name"], "copy");
}

TEST_F(EtactlCalibrateProcessTest, SaysWhatIsRefused) {
  const auto unknown = Run({"profiles", "get", "nobody"});
  EXPECT_EQ(unknown.code, 4);
  EXPECT_THAT(unknown.errors, AllOf(HasSubstr("NOT_FOUND"), HasSubstr("PROFILE_NOT_FOUND")));
  const auto density = Calibrate("wiki", {"--target=union-density=7"});
  EXPECT_EQ(density.code, 4);
  EXPECT_THAT(density.errors, HasSubstr("field target.union_density"));
  const auto few = Calibrate("wiki", {});
  EXPECT_EQ(few.code, 4) << "the default target judges a perplexity";
  EXPECT_THAT(few.errors, AllOf(HasSubstr("field samples"), HasSubstr("at least 1024 tokens")));
  const auto unverified = CalibrateOn(texts_, "wiki", {"--target=union-density=0.9"});
  EXPECT_EQ(unverified.code, 4);
  EXPECT_THAT(unverified.errors, AllOf(HasSubstr("field samples"), HasSubstr("(allow_loss)")));
  const auto one = Run({"calibrate", "wiki", "--samples=" + texts_.path() + "/silver.txt"});
  EXPECT_EQ(one.code, 4);
  EXPECT_THAT(one.errors, HasSubstr("at least 2 different documents"));
  const auto json = Run({"profiles", "import", "-", "--json"}, "{}");
  EXPECT_EQ(json.code, 4);
  EXPECT_EQ(JsonLines(json.output).at(0)["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(Run({"calibrate", "wiki", "--samples=/nowhere"}).code, 2);
  EXPECT_EQ(Run({"profiles", "import", "/nowhere"}).code, 2);
  EXPECT_EQ(Run({"profiles", "alias", "wiki", "stable"}).code, 2);
  EXPECT_EQ(Run({"profiles"}).code, 2);
}

TEST_F(EtactlCalibrateProcessTest, AProfileThatLosesIsStoredIfThatIsAllowed) {
  // Enough for a verdict: six sequences held out, and two to choose on.
  const TempFolder texts;
  WriteTexts(3000, texts);
  std::vector<std::string> sparse = {"--target=union-density=0.6", "--floor=none", "--z=0",
                                     "--sequence_tokens=384", "--held_out=0.75"};
  const auto refused = CalibrateOn(texts, "wiki", sparse);
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.errors,
              AllOf(HasSubstr("PROFILE_LOSES"), HasSubstr("would lose too much"),
                    HasSubstr("; the nearest request that passes: union_density=")));
  EXPECT_EQ(Run({"profiles", "list", "--json"}).output, "");
  sparse.push_back("--allow_loss");
  const auto stored = CalibrateOn(texts, "wiki", sparse);
  EXPECT_EQ(stored.code, 0) << stored.errors;
  EXPECT_THAT(stored.output, AllOf(HasSubstr("\nreads "), HasSubstr(", verified on 6 held out (")));
}

// Some three minutes a folder on two cores.
TEST_F(EtactlCalibrateProcessTest, TheDefaultTargetEndsInAProfileOnEveryBundledFolder) {
  if (!LongRun()) GTEST_SKIP() << "part of the long run (ETA_TEST_LONG)";
  for (const std::string folder : {"books", "code", "legal", "other", "wiki"}) {
    const auto exit = Run({"calibrate", folder, "--samples=" + kSamples + folder});
    EXPECT_EQ(exit.code, 0) << exit.errors;
    EXPECT_THAT(exit.output, AllOf(HasSubstr("\nreads "), HasSubstr("; dynamic reads ")));
    const bool dominated = exit.output.find("use dynamic attention") != std::string::npos;
    const bool staged = exit.output.find("\nstaged: ") != std::string::npos;
    EXPECT_EQ(staged, dominated) << exit.output;
  }
}

TEST_F(EtactlCalibrateProcessTest, StopsAtCtrlCAndStoresNothing) {
  CtlProcess ctl(With({"calibrate", "books", "--samples=" + kSamples + "books"}));
  ASSERT_TRUE(ctl.AwaitErrors()) << "a calibration of 32000 tokens should have begun";
  ctl.Signal(SIGINT);
  const auto exit = ctl.AwaitExit();
  EXPECT_EQ(exit.code, 130) << exit.errors;
  EXPECT_EQ(exit.output, "");
  EXPECT_EQ(Run({"profiles", "list", "--json"}).output, "");
  // It was not left alone: it ends within a step, and nobody has to look why it failed.
  const auto ended = [this](const Labels& labels) {
    return PageReader(HttpGet(metrics_port_, "/metrics").body)
        .Sum("eta_calibrations_total", labels);
  };
  for (int i = 0; i < 100 && ended({}) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(ended({{"result", "cancelled"}}), 1);
  EXPECT_EQ(ended({}), 1) << "failed, say";
}

TEST_F(EtactlCalibrateProcessTest, ComesBackToItsCalibrationWhenTheConnectionBreaks) {
  TcpProxy proxy(address_);
  CtlProcess ctl({"calibrate", "wiki", "--server", proxy.address(), "--samples=" + texts_.path(),
                  "--target=union-density=0.6", "--allow_loss"});
  ASSERT_TRUE(ctl.AwaitErrors()) << "its progress";
  proxy.ResetAll();
  const auto exit = ctl.AwaitExit();
  EXPECT_EQ(exit.code, 0) << exit.errors;
  EXPECT_THAT(exit.errors, HasSubstr("; coming back to the calibration in 0.50 s"));
  EXPECT_THAT(exit.output, HasSubstr("profile wiki@1, made 2"));
  EXPECT_THAT(Run({"profiles", "versions", "wiki"}).output, Not(HasSubstr(" 2 ")));
}

TEST_F(EtactlCalibrateProcessTest, ComesBackThoughNoMessageCameBeforeTheConnectionBroke) {
  TcpProxy proxy(address_);
  proxy.SetFaults({.reset_after = 150});  // the server's settings
  CtlProcess ctl({"calibrate", "wiki", "--server", proxy.address(), "--samples=" + texts_.path(),
                  "--target=union-density=0.6", "--allow_loss"});
  EXPECT_TRUE(ctl.AwaitErrors()) << "that it comes back";
  proxy.SetFaults({});
  const auto exit = ctl.AwaitExit();
  EXPECT_EQ(exit.code, 0) << exit.errors;
  EXPECT_THAT(exit.errors, HasSubstr("; coming back to the calibration in 0.50 s"));
  EXPECT_THAT(exit.output, HasSubstr("profile wiki@1, made 2"));
}

TEST_F(EtactlCalibrateProcessTest, AServerThatWasNeverReachedIsNotWaitedFor) {
  const auto exit = CtlProcess({"calibrate", "wiki", "--samples=" + texts_.path(), "--server",
                                "unix:" + folder_.path() + "/nobody"})
                        .AwaitExit();
  EXPECT_EQ(exit.code, 3) << exit.errors;
}

}  // namespace
}  // namespace eta::testing
