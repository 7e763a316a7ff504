// The metrics of the built server: its flags, its catalogue, its page.
#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "service/telemetry/metric_catalogue.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/process/page_reader.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

const std::string kServer = ETA_BINARY_DIR "/eta-server";
const std::string kModel = ETA_SOURCE_DIR "/models/eta-27m";

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
  ServerProcess server(kServer, {"--model", kModel, "--listen", "127.0.0.1:0", "--metrics_listen",
                                 "127.0.0.1:0", "--kv_pool_bytes", "64MiB"});
  const std::string url = server.AwaitLine("metrics on ");
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  const int port = std::stoi(url.substr(url.rfind(':') + 1));
  const auto page = [port] {
    const HttpAnswer answer = HttpGet(port, "/metrics");
    EXPECT_EQ(answer.status, 200);
    return PageReader(answer.body);
  };

  const auto stub =
      v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  for (int i = 1; i <= 3; ++i) {
    ClientCall client(*stub);
    v1::GenerateRequest request = Ask("The tower");
    request.mutable_stopping()->set_max_tokens(16);
    client.Start(request);
    client.ReadText();
    EXPECT_TRUE(client.Finish().ok());
    const PageReader counted = page();
    EXPECT_EQ(counted.Sum("eta_requests_total", {{"method", "Generate"}, {"code", "OK"}}), i);
    EXPECT_EQ(counted.Count("eta_request_generated_tokens", {{"model", "eta-27m"}}), i);
  }

  const PageReader live = page();
  size_t metrics = 0;
  for (const MetricGroup& group : MetricCatalogue()) {
    metrics += group.metrics.size();
    for (const Metric& metric : group.metrics) {
      EXPECT_TRUE(live.families().contains(std::string(metric.name))) << metric.name;
    }
  }
  EXPECT_EQ(live.families().size(), metrics);
  EXPECT_EQ(live.Value("eta_engine_state", {{"state", "serving"}}), 1.0);
  EXPECT_EQ(HttpGet(port, "/").status, 404);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit().code, 0);
}

}  // namespace
}  // namespace eta::testing
