// Every query of the dashboards and every rule, run by a Prometheus that has seen real traffic.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "engine/format/library/grammar_library.h"
#include "gmock/gmock.h"
#include "tests/testing/monitoring/monitoring_fixture.h"

namespace eta::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::Gt;
using ::testing::SizeIs;

// The job of a Prometheus 2, and the one whose buckets are spelled as Prometheus 3 does.
constexpr const char* kJobs[] = {"eta-server", "eta-server-v3"};

// With Grafana's variables as it would fill them in.
std::string Filled(const std::string& expression, const char* job = kJobs[0]) {
  return absl::StrReplaceAll(expression, {{"$__rate_interval", "1m"},
                                          {"$__range", "5m"},
                                          {"$__interval", "15s"},
                                          {"$instance", ".*"},
                                          {"$profile", ".*"},
                                          {"$tenant", ".*"},
                                          {"$version", ".*"},
                                          {"$mode", ".*"},
                                          {"$job", job}});
}

// Whether a result has a number in it; division by nothing gives NaN, which draws nothing.
bool HasNumber(const json& result) {
  if (!result.is_array()) return false;
  return std::any_of(result.begin(), result.end(), [](const json& series) {
    return std::isfinite(std::stod(series["value"][1].get<std::string>()));
  });
}

class QueriesTest : public MonitoringTest {
 protected:
  static json Query(const std::string& expression) {
    return system().prometheus().Query(expression);
  }
  static std::vector<std::pair<std::string, json>> Dashboards() {
    std::vector<std::pair<std::string, json>> dashboards;
    for (const auto& file : fs::directory_iterator(ETA_SOURCE_DIR "/deploy/grafana/dashboards")) {
      dashboards.emplace_back(file.path().filename(), json::parse(ReadFile(file.path())));
    }
    return dashboards;
  }
};

TEST_F(QueriesTest, EveryPanelHasData) {
  size_t queries = 0;
  for (const auto& [file, dashboard] : Dashboards()) {
    for (const json& panel : dashboard["panels"]) {
      const std::string title = file + ": " + panel["title"].get<std::string>();
      EXPECT_NE(panel["type"] == "row", panel.contains("targets")) << title;
      for (const json& target : panel.value("targets", json::array())) {
        const bool of_formats =
            absl::StrContains(target["expr"].get<std::string>(), "eta_format_") ||
            absl::StrContains(target["expr"].get<std::string>(), "_mask_");
        if (of_formats && !HasGrammarLibrary()) continue;
        for (const char* job : kJobs) {
          const std::string expression = Filled(target["expr"], job);
          EXPECT_FALSE(absl::StrContains(expression, "$")) << title << ": " << expression;
          const json result = Query(expression);
          EXPECT_TRUE(HasNumber(result)) << title << ": " << expression << "\n" << result;
        }
        ++queries;
      }
    }
  }
  EXPECT_THAT(queries, Gt(100));
}

TEST_F(QueriesTest, EveryVariableHasValues) {
  for (const auto& [file, dashboard] : Dashboards()) {
    for (const json& variable : dashboard["templating"]["list"]) {
      if (variable["type"] != "query") continue;
      const std::string definition = variable["definition"];
      std::smatch parts;
      ASSERT_TRUE(std::regex_match(definition, parts, std::regex(R"(label_values\((.+), (\w+)\))")))
          << variable;
      const std::string series = parts[1], label = parts[2];
      EXPECT_EQ(label, variable["name"]);
      const json result = Query(Filled("count by (" + label + ") (" + series + ")"));
      EXPECT_TRUE(HasNumber(result)) << file << " " << label;
      EXPECT_TRUE(result[0]["metric"].contains(label)) << file << " " << label;
    }
    for (const json& annotation : dashboard["annotations"]["list"]) {
      EXPECT_TRUE(Query(Filled(annotation["expr"])).is_array()) << annotation["expr"];
    }
  }
}

// Rules are judged by what they read: an alert has no data while all is well.
TEST_F(QueriesTest, EveryRuleReadsSeriesThatExist) {
  const json rules = system().prometheus().Rules();
  std::set<std::string> recorded;
  for (const json& rule : rules) {
    if (rule["type"] == "recording") recorded.insert(rule["name"]);
  }
  EXPECT_THAT(recorded, SizeIs(Gt(10)));
  const std::regex metric(R"(\b((eta|process|job(_[a-z]+)*:eta)[a-z0-9_:]*|up)\b)");
  for (const json& rule : rules) {
    const std::string name = rule["name"];
    const std::string expression = rule["query"];
    EXPECT_EQ(rule["health"], "ok") << name << rule.value("lastError", "");
    if (rule["type"] == "recording") {
      for (const char* job : kJobs) {
        EXPECT_TRUE(HasNumber(Query(name + "{job=\"" + job + "\"}"))) << name << ": " << expression;
      }
      continue;
    }
    EXPECT_TRUE(Query(expression).is_array()) << name << Query(expression);
    // Values of labels may look like metrics.
    const std::string bare = std::regex_replace(expression, std::regex("\"[^\"]*\""), "");
    size_t metrics = 0;
    for (std::sregex_iterator read(bare.begin(), bare.end(), metric), end; read != end; ++read) {
      ++metrics;
      if (absl::StartsWith(read->str(), "eta_front_")) continue;  // there is no front here
      EXPECT_TRUE(HasNumber(Query(read->str()))) << name << " reads " << read->str();
    }
    EXPECT_THAT(metrics, Gt(0)) << name;
  }
}

TEST_F(QueriesTest, NoAlertFiresOnAHealthyServer) {
  for (const json& rule : system().prometheus().Rules()) {
    if (rule["type"] != "alerting") continue;
    for (const json& alert : rule["alerts"]) {
      EXPECT_NE(alert["state"], "firing") << rule["name"] << alert;
    }
  }
}

TEST_F(QueriesTest, AlertsNameTheirRunbooks) {
  const std::string document = ReadFile(ETA_SOURCE_DIR "/deploy/README.md");
  for (const json& rule : system().prometheus().Rules()) {
    if (rule["type"] != "alerting") continue;
    const std::string name = rule["name"];
    EXPECT_THAT(rule["annotations"].value("runbook", ""),
                ::testing::StartsWith("deploy/README.md#"))
        << name;
    EXPECT_TRUE(absl::StrContains(document, name)) << name;
    EXPECT_THAT(rule["labels"].value("severity", ""), ::testing::AnyOf("page", "ticket")) << name;
  }
}

}  // namespace
}  // namespace eta::testing
