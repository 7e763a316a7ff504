// One server and one Prometheus for all tests of this program. There are two rounds of traffic with
// a scrape between them, so that counters have rates.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/monitoring/live_system.h"

namespace eta::testing {

class MonitoringTest : public ::testing::Test {
 protected:
  struct Played {
    LiveSystem system;
    v1::Stats stats;
    v1::Stats stats_of_bob;
    v1::Stats stats_of_nobody;
    std::string page_text;
    MetricSamples page;
  };

  static void SetUpTestSuite() {
    if (tried_) return;
    tried_ = true;
    auto played = std::make_unique<Played>();
    ASSERT_TRUE(played->system.ok()) << played->system.Errors();
    played->system.MakeProfiles();
    if (HasFatalFailure()) return;
    played->system.PlayRound();
    if (HasFatalFailure()) return;
    ASSERT_TRUE(played->system.prometheus().AwaitScrapes(1));
    played->system.PlayRound();
    played->stats_of_bob = played->system.AskStats(/*layers=*/false, "bob");
    played->stats_of_nobody = played->system.AskStats(/*layers=*/false, "nobody");
    played->stats = played->system.AskStats(/*layers=*/true);
    played->page_text = played->system.ReadPage();
    played->page = MetricSamples(played->page_text);
    ASSERT_TRUE(played->system.prometheus().AwaitScrapes(2));
    played_ = std::move(played);
  }
  void SetUp() override { ASSERT_NE(played_, nullptr) << "no traffic was played"; }

  static LiveSystem& system() { return played_->system; }
  static const v1::Stats& stats() { return played_->stats; }
  static const v1::Stats& stats_of_bob() { return played_->stats_of_bob; }
  // Of a tenant that made no call.
  static const v1::Stats& stats_of_nobody() { return played_->stats_of_nobody; }
  static const MetricSamples& page() { return played_->page; }
  static const std::string& page_text() { return played_->page_text; }

  static int64_t AllAnswers() {
    int64_t answers = 0;
    for (const auto& [labels, sums] : system().counts.tenants) answers += sums.answers;
    return answers;
  }
  static size_t CountSamples(const std::string& prefix) {
    return static_cast<size_t>(std::count_if(
        page().all().begin(), page().all().end(),
        [&](const auto& sample) { return sample.name.compare(0, prefix.size(), prefix) == 0; }));
  }
  static MetricLabels LabelsOf(const v1::AttentionSeries& series) {
    const std::string mode = series.mode() == v1::ATTENTION_MODE_FULL      ? "full"
                             : series.mode() == v1::ATTENTION_MODE_DYNAMIC ? "dynamic"
                                                                           : "profile";
    if (series.profile().empty()) {
      return {
          {"mode", mode}, {"profile", "none"}, {"version", "none"}, {"tenant", series.tenant()}};
    }
    return {{"mode", mode},
            {"profile", series.profile()},
            {"version", series.has_version() ? std::to_string(series.version()) : "other"},
            {"tenant", series.tenant()}};
  }

 private:
  inline static bool tried_ = false;
  inline static std::unique_ptr<Played> played_;  // ends its processes when the program ends
};

}  // namespace eta::testing
