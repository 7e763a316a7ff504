// eta-bench health: how long health checks and Stats take while clients send long texts, whose
// tokens take time to make and are then too many: where the longest piece of the vocabulary is so
// long that their bytes do not say so.
//
//   eta-server --model=$model --max_context=2000 --health_listen=127.0.0.1:8473
//   eta-bench health --health_address=127.0.0.1:8473 --clients=0,3,6
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "eta/v1/service.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/status.h"
#include "tests/bench/eta_bench/service/load.h"

namespace eta::bench {
namespace {

using grpc::health::v1::Health;

constexpr std::chrono::milliseconds kPeriod{10};  // of a probe

struct HealthOptions {
  LoadOptions load;
  std::string health_address;
  double seconds = 10.0;
  std::vector<int> clients = {0, 3, 6};
};

// Asks again and again, one call at a time, until it is joined.
class Probe {
 public:
  // Of one call.
  using Ask = std::function<grpc::Status(grpc::ClientContext&)>;

  Probe(std::string what, Ask ask)
      : what_(std::move(what)), ask_(std::move(ask)), thread_([this] { Run(); }) {}

  Json Join() {
    end_ = true;
    thread_.join();
    return {{"asked", what_},
            {"calls", milliseconds_.size()},
            {"p50_ms", Quantile(milliseconds_, 0.5)},
            {"p99_ms", Quantile(milliseconds_, 0.99)},
            {"max_ms", Quantile(milliseconds_, 1.0)}};
  }

 private:
  void Run() {
    while (!end_) {
      const Stopwatch watch;
      grpc::ClientContext context;
      const grpc::Status status = ask_(context);
      if (!status.ok()) Fail(what_ + ": " + status.error_message());
      milliseconds_.push_back(1e3 * watch.seconds());
      std::this_thread::sleep_for(kPeriod);
    }
  }

  const std::string what_;
  const Ask ask_;
  std::atomic<bool> end_ = false;
  std::vector<double> milliseconds_;
  std::thread thread_;  // last: it uses the others
};

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10))) {
    Fail("no connection to " + address);
  }
  return channel;
}

Probe::Ask AskHealth(const std::string& address) {
  const std::shared_ptr<Health::Stub> stub = Health::NewStub(Connect(address));
  return [stub](grpc::ClientContext& context) {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service("liveness");
    grpc::health::v1::HealthCheckResponse response;
    return stub->Check(&context, request, &response);
  };
}

Probe::Ask AskStats(const LoadOptions& load) {
  const std::shared_ptr<v1::EtaService::Stub> stub = v1::EtaService::NewStub(Connect(load.address));
  return [stub](grpc::ClientContext& context) {
    v1::Stats stats;
    return stub->Stats(&context, {}, &stats);
  };
}

// A row for each of the probes, under the texts of so many clients.
void RunClients(const HealthOptions& options, int clients, Json& rows) {
  LoadOptions load = options.load;
  load.connections = std::max(clients, 1);
  load.seed += static_cast<uint64_t>(clients);
  LoadGenerator generator(load);
  std::vector<std::unique_ptr<Probe>> probes;
  probes.push_back(std::make_unique<Probe>("health", AskHealth(load.address)));
  if (!options.health_address.empty()) {
    probes.push_back(std::make_unique<Probe>("health port", AskHealth(options.health_address)));
  }
  probes.push_back(std::make_unique<Probe>("Stats", AskStats(load)));
  int64_t texts = 0;
  if (clients == 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  } else {
    const std::vector<Stream> streams(static_cast<size_t>(clients), Stream{});
    for (const auto& calls : generator.Run(streams, options.seconds)) {
      texts += static_cast<int64_t>(calls.size());
    }
  }
  for (const auto& probe : probes) {
    Json row = {{"clients", clients}, {"texts", texts}};
    row.update(probe->Join());
    rows.push_back(std::move(row));
  }
}

Json RunHealth(const HealthOptions& options) {
  Json rows = Json::array();
  for (const int clients : options.clients) RunClients(options, clients, rows);
  return {{"bench", "health"},
          {"text_bytes", options.load.text_bytes},
          {"seconds", options.seconds},
          {"rows", std::move(rows)}};
}

void PrintHealth(const Json& report) {
  PrintTable(report["rows"], {{"clients", "clients"},
                              {"texts", "texts"},
                              {"asked", "asked"},
                              {"calls", "calls"},
                              {"p50 ms", "p50_ms", 1},
                              {"p99 ms", "p99_ms", 1},
                              {"max ms", "max_ms", 1}});
}

}  // namespace

void AddHealthCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<HealthOptions>();
  options->load.text_bytes = 750'000;
  CLI::App* command =
      app.add_subcommand("health", "Health checks and Stats while clients send long texts");
  command->add_option("--address", options->load.address, "HOST:PORT or unix:PATH")
      ->capture_default_str();
  command->add_option("--health_address", options->health_address,
                      "The server's --health_listen. Default: it is not asked");
  command->add_option("--clients", options->clients, "One text each at a time")
      ->delimiter(',')
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  command->add_option("--text_bytes", options->load.text_bytes, "Random letters of a text")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "Of each number of clients")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->callback([options, &chosen] {
    chosen = {[options] { return RunHealth(*options); }, PrintHealth};
  });
}

}  // namespace eta::bench
