// eta-bench against the shipped server: its reports of overload, fairness and health have the
// fields that others read, and are consistent. The measured values are not judged here.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/process/bench_run.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class EtaBenchProcessTest : public ::testing::Test {
 protected:
  // Starts a server with places for six requests.
  void StartServer(const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--model",
                                      model_.path(),
                                      "--listen",
                                      "127.0.0.1:0",
                                      "--max_running",
                                      "2",
                                      "--threads",
                                      "1",
                                      "--kv_pool_bytes",
                                      "16777216",
                                      "--max_waiting_requests",
                                      "4"};
    flags.insert(flags.end(), more.begin(), more.end());
    server_.emplace(ETA_BINARY_DIR "/eta-server", flags);
    address_ = server_->AwaitAddress();
    ASSERT_FALSE(address_.empty()) << server_->AwaitExit().errors;
  }
  BenchRun Run(const std::string& command) const {
    return RunBench(command + " --address=" + address_ +
                    " --seconds=1 --levels=2 --connections=2 --prompt_tokens=8 --max_tokens=3");
  }
  json Report(const std::string& command) const {
    const BenchRun run = Run(command + " --json");
    EXPECT_EQ(run.code, 0);
    json report = json::parse(run.output, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(report.is_object()) << run.output;
    return report;
  }
  static void ExpectNumbers(const json& report, const std::vector<const char*>& fields) {
    for (const char* const field : fields) {
      EXPECT_TRUE(report.contains(field) && report[field].is_number()) << field;
    }
  }
  // Expects only answers and refusals for want of room, with some answers, each with its times.
  static void ExpectPhases(const json& phases, const std::vector<std::string>& names) {
    ASSERT_EQ(phases.size(), names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      const json& phase = phases[i];
      EXPECT_EQ(phase["what"], names[i]);
      EXPECT_GE(phase["answers_per_s"].get<double>(), 0.0);
      EXPECT_GT(phase["load_cores"].get<double>(), 0.0);
      for (const auto& [code, calls] : phase["codes"].items()) {
        EXPECT_TRUE(code == "0" || code == "8") << code;
        EXPECT_GT(calls.get<int64_t>(), 0);
      }
      EXPECT_TRUE(phase["codes"].contains("0")) << names[i];
      for (const char* const times : {"total_ms", "first_token_ms", "between_ms", "refused_ms"}) {
        const json& of = phase[times];
        ExpectNumbers(of, {"p50", "p90", "p99", "max"});
        EXPECT_LE(of["p50"].get<double>(), of["p99"].get<double>()) << times;
        EXPECT_LE(of["p99"].get<double>(), of["max"].get<double>()) << times;
      }
      EXPECT_GT(phase["total_ms"]["p50"].get<double>(), 0.0);
    }
  }

  const TinyModel model_;
  std::optional<ServerProcess> server_;
  std::string address_;
};

TEST_F(EtaBenchProcessTest, ReportsOverload) {
  StartServer({});
  const json report = Report("overload --times=3");
  EXPECT_EQ(report["bench"], "overload");
  EXPECT_EQ(report["prompt_tokens"], 8);
  EXPECT_EQ(report["max_tokens"], 3);
  EXPECT_EQ(report["seconds"], 1.0);
  EXPECT_EQ(report["peak_streams"], 2);
  ExpectNumbers(report, {"peak_answers_per_s", "offered_per_s", "answers_per_s", "goodput_of_peak",
                         "refused_p50_ms", "refused_p99_ms", "admitted_p99_of_unloaded",
                         "admitted_p99_of_peak"});
  ExpectPhases(report["phases"], {"closed loop of 2", "overload"});
  const double peak = report["peak_answers_per_s"];
  EXPECT_EQ(peak, report["phases"][0]["answers_per_s"].get<double>());
  EXPECT_NEAR(report["offered_per_s"].get<double>(), 3 * peak, 1e-6 * peak);
  EXPECT_EQ(report["answers_per_s"], report["phases"][1]["answers_per_s"]);
  EXPECT_NEAR(report["goodput_of_peak"].get<double>() * peak, report["answers_per_s"].get<double>(),
              1e-6 * peak);
  EXPECT_EQ(report["refused_p99_ms"], report["phases"][1]["refused_ms"]["p99"]);
}

TEST_F(EtaBenchProcessTest, ReportsFairness) {
  StartServer({"--tenant_header", "eta-tenant"});
  const json report = Report("fairness --tenant_header=eta-tenant --share=0.2 --excess=3");
  EXPECT_EQ(report["bench"], "fairness");
  EXPECT_EQ(report["seconds"], 1.0);
  EXPECT_EQ(report["excess"], 3.0);
  ExpectNumbers(report, {"peak_answers_per_s", "share_per_s", "first_token_p99_change",
                         "between_p99_change", "total_p99_change", "refused_of_b"});
  ExpectPhases(report["phases"], {"closed loop of 2", "a at its share", "b beside it",
                                  "a at its excess", "b beside that"});
  const double peak = report["peak_answers_per_s"];
  EXPECT_NEAR(report["share_per_s"].get<double>(), 0.2 * peak, 1e-6 * peak);
}

TEST_F(EtaBenchProcessTest, ReportsHealth) {
  StartServer({});
  const BenchRun run = RunBench("health --address=" + address_ + " --health_address=" + address_ +
                                " --seconds=1 --clients=2 --text_bytes=10000 --json");
  EXPECT_EQ(run.code, 0);
  const json report = json::parse(run.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(report.is_object()) << run.output;
  EXPECT_EQ(report["bench"], "health");
  ASSERT_EQ(report["rows"].size(), 3u);
  for (const json& row : report["rows"]) {
    EXPECT_EQ(row["clients"], 2);
    EXPECT_GT(row["texts"].get<int>(), 0);
    EXPECT_GT(row["calls"].get<int>(), 0);
    ExpectNumbers(row, {"p50_ms", "p99_ms", "max_ms"});
  }
}

TEST_F(EtaBenchProcessTest, PrintsATable) {
  StartServer({});
  const BenchRun run = Run("overload --times=1");
  EXPECT_EQ(run.code, 0);
  for (const char* const part : {"answers/s", "refused p50", "closed loop of 2", "overload",
                                 "goodput_of_peak: ", "peak_streams: 2"}) {
    EXPECT_THAT(run.output, HasSubstr(part));
  }
}

TEST_F(EtaBenchProcessTest, SaysWhatTheServerLacks) {
  StartServer({});
  const auto expect_error = [this](const std::string& command, const std::string& line) {
    const BenchRun run = Run(command + " 2>&1");
    EXPECT_EQ(run.code, 1) << command;
    EXPECT_EQ(run.output, "eta-bench: " + line + "\n");
  };
  expect_error("fairness", "--tenant_header: which key names the tenant?");
  expect_error("fairness --tenant_header=eta-tenant",
               "the server does not tell tenants apart: start it with --tenant_header=eta-tenant");
  StartServer({"--tenant_header", "eta-tenant"});
  expect_error("overload", "a call ended with code 16: the call does not name its tenant");
}

}  // namespace
}  // namespace eta::testing
