// The canary of deploy/README.md, run as it stands there: two versions of a profile beside each
// other, each judged by what its own calibration measured.
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/process/ctl_process.h"
#include "tests/testing/process/metric_samples.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Gt;
using ::testing::HasSubstr;

const std::string kTexts = ETA_SOURCE_DIR "/models/eta-27m/samples/legal/";

// What stands in the manual between `from` and `to`, after `heading`.
std::string Manual(const std::string& heading, const std::string& from, const std::string& to) {
  static const std::string document = ReadFile(ETA_SOURCE_DIR "/deploy/README.md");
  const size_t begin = document.find(from, document.find(heading));
  const size_t end = document.find(to, begin + from.size());
  EXPECT_NE(end, std::string::npos) << heading;
  if (end == std::string::npos) return "";
  return document.substr(begin + from.size(), end - begin - from.size());
}

class CanaryProcessTest : public ::testing::Test {
 protected:
  struct Output {
    int code = -1;
    std::string text;  // of both streams
  };

  void SetUp() override {
    ASSERT_TRUE(server_.up()) << server_.process().AwaitExit().errors;
    fs::create_directories(folder_.path() + "/texts/legal");
    for (const char* text : {"usc-24-10", "usc-41-47", "usc-44-36", "pep-0572"}) {
      const std::string name = absl::StrCat(text, ".txt");
      folder_.Write("texts/legal/" + name, ReadFile(kTexts + name));
    }
    folder_.Write("question.txt", ReadFile(kTexts + "usc-51-601.txt").substr(0, 5500));
  }

  // Runs commands as a shell does that stands in the folder with the texts, up to the first that
  // fails.
  Output Shell(const std::string& commands) const {
    const std::string script = folder_.Write("script.sh", commands);
    const std::string log = folder_.path() + "/log.txt";
    const int status =
        std::system(absl::StrCat("cd ", folder_.path(),
                                 " && PATH=" ETA_BINARY_DIR ":$PATH ETA_SERVER=", server_.address(),
                                 " bash -e ", script, " >", log, " 2>&1")
                        .c_str());
    return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1, .text = ReadFile(log)};
  }
  nlohmann::json Json(const std::string& command) const {
    const Output output = Shell(command + " --json");
    EXPECT_EQ(output.code, 0) << command << "\n" << output.text;
    return nlohmann::json::parse(output.text, nullptr, /*allow_exceptions=*/false);
  }
  // The series of one version; null if there is none, or more than one.
  nlohmann::json SeriesOf(const std::string& version) const {
    nlohmann::json found;
    const nlohmann::json stats = Json("etactl stats");
    for (const nlohmann::json& series : stats.at("attention")) {
      if (series.value("profile", "") != "legal" || series.value("version", "") != version)
        continue;
      EXPECT_TRUE(found.is_null()) << series;
      found = series;
    }
    return found;
  }
  std::string VersionOf(const std::string& reference) const {
    return Json("etactl profiles get " + reference).at("version").get<std::string>();
  }

  const TinyModel model_;
  const TempFolder folder_;
  Replica server_{
      model_.path(), folder_.path() + "/profiles.db", {"--metrics_listen", "127.0.0.1:0"}};
};

TEST_F(CanaryProcessTest, TheStepsOfTheManualRollAVersionOutAndBack) {
  const Output before = Shell(R"(
    etactl calibrate legal --samples texts/legal --target union-density=0.6 --allow_loss
    etactl profiles export legal >legal.json
    etactl profiles import legal.json --name legal
    etactl profiles import legal.json --name legal
    etactl profiles alias legal stable 3
    etactl generate --attention profile:legal@stable --ignore_eos --file question.txt
  )");
  ASSERT_EQ(before.code, 0) << before.text;

  std::string steps = Manual("**To roll a profile out**", "```\n", "```\n");
  // What the tiny model loses says nothing.
  const size_t stage = steps.find("--stage");
  ASSERT_NE(stage, std::string::npos);
  steps.insert(stage, "--allow_loss ");
  ASSERT_THAT(steps, AllOf(HasSubstr("legal@canary"), HasSubstr("--expected_version 3")));
  const size_t compare = steps.find("# both versions");
  ASSERT_NE(compare, std::string::npos);
  // The traffic of the version in use goes on beside the canary's.
  const Output begun =
      Shell(steps.substr(0, compare) +
            "etactl generate --attention profile:legal@stable --ignore_eos --file question.txt\n");
  ASSERT_EQ(begun.code, 0) << steps << begun.text;
  EXPECT_EQ(VersionOf("legal"), "3") << "the new version is staged";

  const MetricSamples page(HttpGet(server_.metrics_port(), "/metrics").body);
  for (const std::string version : {"3", "4"}) {
    const nlohmann::json evidence = Json("etactl profiles get legal@" + version).at("evidence");
    const nlohmann::json series = SeriesOf(version);
    ASSERT_TRUE(series.is_object()) << version;
    EXPECT_EQ(series["calibrated_union_density"], evidence["union_density"]) << version;
    EXPECT_EQ(series["calibrated_head_density"], evidence["head_density"]) << version;
    EXPECT_EQ(series["drift_context"], "DRIFT_CONTEXT_CALIBRATED") << series;
    const double recent = series["recent_as_calibrated"]["union_density"];
    const double promised = evidence["union_density"];
    EXPECT_NEAR(series["union_density_drift"], recent / promised - 1.0, 1e-9) << version;
    const MetricLabels labels = {{"tenant", "default"}, {"profile", "legal"}, {"version", version}};
    EXPECT_EQ(page.Sum("eta_attention_keys_read_total", labels),
              std::stod(series["totals"]["keys_read"].get<std::string>()));
    EXPECT_NEAR(page.Sum("eta_profile_target_union_density_ratio", labels), promised, 1e-6);
    EXPECT_THAT(page.Sum("eta_generated_tokens_total", labels), Gt(0));
    EXPECT_EQ(page.Sum("eta_requests_total", labels), version == "3" ? 2 : 1) << version;
  }
  const double stable = SeriesOf("3")["recent"]["union_density"];
  const double canary = SeriesOf("4")["recent"]["union_density"];
  EXPECT_THAT(stable, Gt(canary + 0.05)) << "they were calibrated to 0.6 and 0.35";

  const Output rolled = Shell(steps.substr(compare));
  ASSERT_EQ(rolled.code, 0) << steps << rolled.text;
  EXPECT_THAT(rolled.text, AllOf(HasSubstr("profile legal@3 "), HasSubstr("profile legal@4 ")))
      << "each version stands for itself";
  EXPECT_EQ(VersionOf("legal@stable"), "4");
  EXPECT_EQ(VersionOf("legal"), "4") << "it was staged, then promoted";
  const std::string set_stable = Manual("# switch", "\n", "\n");
  ASSERT_THAT(set_stable, HasSubstr("alias legal stable"));
  const Output late = Shell(set_stable);
  EXPECT_NE(late.code, 0) << set_stable;
  EXPECT_THAT(late.text, HasSubstr("VERSION_MISMATCH")) << "somebody else was faster";

  const std::string back = Manual("**To roll it back:**", "`", "`");
  const Output rolled_back = Shell(back);
  ASSERT_EQ(rolled_back.code, 0) << back << rolled_back.text;
  EXPECT_EQ(VersionOf("legal@stable"), "3");
  const Output answer =
      Shell("etactl generate --attention profile:legal@stable --max_tokens 4 --file question.txt");
  EXPECT_THAT(answer.text, HasSubstr("profile legal@3, "));
}

}  // namespace
}  // namespace eta::testing
