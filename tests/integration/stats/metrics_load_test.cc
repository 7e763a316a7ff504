// What strangers may do to the page of metrics: choose names, and ask for the page all the time.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/process/sanitized.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kLabels = 8;

class MetricsLoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    url_ = server_.AwaitLine("metrics on ");
    address_ = server_.AwaitAddress();
    ASSERT_NE(address_, "") << server_.AwaitExit().errors;
    stub_ =
        v1::EtaService::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    EXPECT_TRUE(Generate("good", "").ok()) << "a good call afterwards";
    server_.Signal(SIGTERM);
    EXPECT_EQ(server_.AwaitExit().code, 0);
  }

  grpc::Status Generate(const std::string& tenant, const std::string& profile, int tokens = 1) {
    v1::GenerateRequest request = Ask("The quick brown fox");
    request.mutable_stopping()->set_max_tokens(tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    if (!profile.empty()) request.mutable_attention()->set_profile(profile);
    ClientCall call(*stub_);
    call.context.AddMetadata(kTenantHeader, tenant);
    call.Start(request);
    call.ReadText();
    return call.Finish();
  }
  HttpAnswer Page() const {
    return HttpGet(std::stoi(url_.substr(url_.rfind(':') + 1)), "/metrics");
  }
  // The series of a page without their values.
  static std::set<std::string> SeriesOf(const std::string& page) {
    std::set<std::string> series;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with('#')) series.insert(line.substr(0, line.rfind(' ')));
    }
    return series;
  }
  // The durations of `calls` answers, in ascending order.
  std::vector<milliseconds::rep> Latencies(int calls) {
    std::vector<milliseconds::rep> taken;
    for (int i = 0; i < calls; ++i) {
      const auto begin = steady_clock::now();
      const grpc::Status status = Generate("good", "", 8);
      EXPECT_TRUE(status.ok()) << status.error_message();
      taken.push_back(
          std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin).count());
    }
    std::sort(taken.begin(), taken.end());
    return taken;
  }

  const TinyModel model_;
  const TempFolder folder_;
  ServerProcess server_{
      ETA_BINARY_DIR "/eta-server",
      {"--model", model_.path(), "--listen", "127.0.0.1:0", "--kv_pool_bytes", "16MiB",
       "--metrics_listen", "127.0.0.1:0", "--profile_store", folder_.path() + "/profiles.db",
       "--tenant_header", kTenantHeader, "--metrics_label_limit", std::to_string(kLabels)}};
  std::string url_;
  std::string address_;
  std::unique_ptr<v1::EtaService::Stub> stub_;
};

// bad input: Callers | random names of tenants and profiles, to blow up labels | the number of
//   series stays; what has no label is "other"
TEST_F(MetricsLoadTest, NamesThatClientsChooseMakeNoSeries) {
  std::mt19937 random(1);
  const auto name = [&random] { return "n" + std::to_string(random()); };
  const auto storm = [&](int calls) {
    for (int i = 0; i < calls; ++i) {
      EXPECT_TRUE(Generate(name(), "").ok());
      EXPECT_EQ(ReasonOf(Generate(name(), name())), "PROFILE_NOT_FOUND");
      EXPECT_EQ(ReasonOf(Generate(name(), "../" + name())), "INVALID_FIELD");
    }
  };
  storm(2 * kLabels);  // every possible label
  const std::set<std::string> before = SeriesOf(Page().body);
  storm(Rounds(100, 10'000));
  const std::set<std::string> after = SeriesOf(Page().body);
  std::vector<std::string> more;
  std::set_difference(after.begin(), after.end(), before.begin(), before.end(),
                      std::back_inserter(more));
  EXPECT_THAT(more, ::testing::IsEmpty());
  EXPECT_GT(before.size(), 100u);
}

// 10,000 scrapes a minute, evenly spaced. This is so many that a server would show it if it gave
// each a thread, or the time of a step.
// bad input: Limits and load | 10,000 scrapes a minute | bounded by threads of their own; answers
//   go on as before
TEST_F(MetricsLoadTest, ThousandsOfScrapesHoldNoAnswerUp) {
  constexpr milliseconds kInterval{6};
  const int calls = Rounds(50, 2'000);
  const int enough = Rounds(200, 10'000);
  Latencies(20);  // warm-up
  const auto alone = Latencies(calls);
  std::atomic<bool> stop = false;
  std::atomic<int> scrapes = 0;
  const auto begin = steady_clock::now();
  std::vector<std::thread> scrapers;
  for (int i = 0; i < 4; ++i) {
    scrapers.emplace_back([&] {
      auto next = steady_clock::now();
      while (!stop) {
        const HttpAnswer answer = Page();
        EXPECT_EQ(answer.status, 200);
        EXPECT_THAT(answer.body, ::testing::HasSubstr("eta_requests_total"));
        ++scrapes;
        next += 4 * kInterval;
        std::this_thread::sleep_until(next);
      }
    });
  }
  std::vector<milliseconds::rep> beside;
  while (beside.empty() || (scrapes < enough && !HasFailure())) {
    const auto more = Latencies(calls);
    beside.insert(beside.end(), more.begin(), more.end());
  }
  const auto due = (steady_clock::now() - begin) / kInterval;
  EXPECT_GE(scrapes, enough);
  if (LongRun() && !kAddressSanitizer) {
    EXPECT_GE(scrapes, due * 9 / 10) << "that were not 10,000 a minute";
  }
  stop = true;
  for (std::thread& scraper : scrapers) scraper.join();
  std::sort(beside.begin(), beside.end());
  const auto afterwards = Latencies(calls);
  const auto p50 = [](const auto& latencies) { return latencies[latencies.size() / 2]; };
  const auto p99 = [](const auto& latencies) { return latencies[latencies.size() * 99 / 100]; };
  std::printf(
      "%d answers: p50 %ld ms, p99 %ld ms; beside %d scrapes: p50 %ld ms, p99 %ld ms; afterwards "
      "p50 %ld ms, p99 %ld ms\n",
      calls, p50(alone), p99(alone), scrapes.load(), p50(beside), p99(beside), p50(afterwards),
      p99(afterwards));
  // Other work of this machine comes and goes and causes the slowest answers. Scrapers and the
  // server share its cores.
  const auto usual_p50 = std::max(p50(alone), p50(afterwards));
  const auto usual_p99 = std::max(p99(alone), p99(afterwards));
  const bool judged = LongRun() && !kAddressSanitizer;
  EXPECT_LE(p50(beside), judged ? 2 * usual_p50 + 2 : 10 * usual_p50 + 10);
  EXPECT_LE(p99(beside), judged ? 3 * usual_p99 + 20 : 10 * usual_p99 + 500);
}

}  // namespace
}  // namespace eta::testing
