// The metrics of the built server: its flags, its catalogue, its page.
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "service/telemetry/metric_catalogue.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/process/page_reader.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

const std::string kServer = ETA_BINARY_DIR "/eta-server";
const std::string kModel = ETA_SOURCE_DIR "/models/eta-27m";

class MetricsServer {
 public:
  MetricsServer() {
    const std::string url = process_.AwaitLine("metrics on ");
    const std::string address = process_.AwaitAddress();
    if (address.empty()) return;
    port_ = std::stoi(url.substr(url.rfind(':') + 1));
    stub_ =
        v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  }
  bool up() const { return stub_ != nullptr; }
  ServerProcess& process() { return process_; }
  v1::EtaService::Stub& stub() { return *stub_; }
  int port() const { return port_; }
  PageReader Page() const {
    const HttpAnswer answer = HttpGet(port_, "/metrics");
    EXPECT_EQ(answer.status, 200);
    return PageReader(answer.body);
  }

 private:
  ServerProcess process_{kServer,
                         {"--model", kModel, "--listen", "127.0.0.1:0", "--metrics_listen",
                          "127.0.0.1:0", "--kv_pool_bytes", "256MiB"}};
  int port_ = 0;
  std::unique_ptr<v1::EtaService::Stub> stub_;
};

TEST(MetricsProcess, PrintsTheCatalogueThatTheDocumentIs) {
  std::FILE* const pipe = popen((kServer + " --print_metrics").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string printed;
  std::array<char, 4096> part;
  while (const size_t count = fread(part.data(), 1, part.size(), pipe)) {
    printed.append(part.data(), count);
  }
  EXPECT_EQ(pclose(pipe), 0);
  std::ostringstream document;
  document << std::ifstream(ETA_SOURCE_DIR "/deploy/metrics.md").rdbuf();
  EXPECT_EQ(printed, document.str());
}

TEST(MetricsProcess, DoesNotStartWhereItsAddressIsBad) {
  for (const char* address :
       {"0.0.0.0:0", "[::]:0", "[::1]:0", "10.0.0.1:8472", "8472", "localhost", "127.0.0.1:70000",
        "127.0.0.1:0,0.0.0.0:0", "unix:/tmp/metrics"}) {
    ServerProcess server(kServer, {"--model", kModel, "--metrics_listen", address});
    const ServerProcess::Exit exit = server.AwaitExit();
    EXPECT_EQ(exit.code, 2) << address << exit.errors;
    EXPECT_THAT(exit.errors, HasSubstr("--metrics_listen")) << address;
  }
}

TEST(MetricsProcess, ServesItsCatalogueAndCountsACallBeforeItsClientKnows) {
  MetricsServer server;
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  for (int i = 1; i <= 3; ++i) {
    ClientCall client(server.stub());
    v1::GenerateRequest request = Ask("The tower");
    request.mutable_stopping()->set_max_tokens(16);
    client.Start(request);
    client.ReadText();
    EXPECT_TRUE(client.Finish().ok());
    const PageReader counted = server.Page();
    EXPECT_EQ(counted.Sum("eta_requests_total", {{"method", "Generate"}, {"code", "OK"}}), i);
    EXPECT_EQ(counted.Count("eta_request_generated_tokens", {{"model", "eta-27m"}}), i);
  }

  const PageReader live = server.Page();
  size_t metrics = 0;
  for (const MetricGroup& group : MetricCatalogue()) {
    metrics += group.metrics.size();
    for (const Metric& metric : group.metrics) {
      EXPECT_TRUE(live.families().contains(std::string(metric.name))) << metric.name;
    }
  }
  EXPECT_EQ(live.families().size(), metrics);
  EXPECT_EQ(live.Value("eta_engine_state", {{"state", "serving"}}), 1.0);
  EXPECT_EQ(HttpGet(server.port(), "/").status, 404);
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().AwaitExit().code, 0);
}

// What EtaRefusesForLoad and the share that it reads select of the page, when nearly everybody is
// refused and nobody waits.
TEST(MetricsProcess, CallsRefusedForTheirDeadlinesAreWhatTheAlertReads) {
  constexpr int kRefused = 30;
  MetricsServer server;
  ASSERT_TRUE(server.up()) << server.process().AwaitExit().errors;
  const auto prompt_of = [](int tokens) {
    v1::GenerateRequest request;
    for (int i = 0; i < tokens; ++i) request.mutable_token_ids()->add_ids(300 + i % 7000);
    request.mutable_stopping()->set_max_tokens(4);
    return request;
  };
  ClientCall first(server.stub());
  first.Start(prompt_of(300));
  first.ReadText();
  EXPECT_TRUE(first.Finish().ok()) << "now the server knows how fast it is";
  for (int i = 0; i < kRefused; ++i) {
    ClientCall call(server.stub());
    call.context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(400));
    EXPECT_EQ(ReasonOf(call.Refusal(prompt_of(16'000))), "DEADLINE_TOO_SHORT");
  }
  EXPECT_TRUE(Eventually([&] { return server.Page().Sum("eta_requests_waiting") == 0; }));
  const PageReader page = server.Page();
  EXPECT_EQ(page.Sum("eta_calls_total", {{"method", "Generate"}}), kRefused + 1);
  const std::regex selector(
      R"re(eta_requests_rejected_total\{method="Generate",reason=~"(queue_full[^"]*)"\})re");
  for (const char* file : {"alerts.yml", "rules.yml"}) {
    const std::string rules = ReadFile(std::string(ETA_SOURCE_DIR "/deploy/prometheus/") + file);
    std::smatch found;
    ASSERT_TRUE(std::regex_search(rules, found, selector)) << file;
    double refused = 0;
    for (const std::string& reason : std::vector<std::string>(absl::StrSplit(found.str(1), '|'))) {
      refused +=
          page.Sum("eta_requests_rejected_total", {{"method", "Generate"}, {"reason", reason}});
    }
    EXPECT_EQ(refused, kRefused) << file;
  }
}

}  // namespace
}  // namespace eta::testing
