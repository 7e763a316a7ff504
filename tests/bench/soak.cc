// Many concurrent streams against one server, in one process over a real socket, for as long as
// asked: no call may fail, every stream must move, and what was taken must come back.
//
//   build/bin/soak --model=models/eta-27m --seconds=300 --streams=64
//
// Exits with 1, naming it, for an error, a block that stays in use, memory that grows, or streams
// served unequally.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "engine/engine.h"
#include "eta/v1/service.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "service/server.h"

namespace eta::bench {
namespace {

struct Options {
  std::string model_dir = "models/eta-27m";
  int streams = 64;
  int seconds = 300;
  int64_t kv_pool_bytes = int64_t{48} << 20;  // small enough for preemptions
};

// What one stream's calls came to.
struct StreamTotals {
  int64_t calls = 0;
  int64_t cancelled = 0;
  int64_t tokens = 0;
  int64_t preemptions = 0;
  std::string error;
};

double ResidentMegabytes() {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    if (key == "VmRSS:") {
      double kilobytes = 0.0;
      status >> kilobytes;
      return kilobytes / 1024.0;
    }
    status.ignore(4096, '\n');
  }
  return 0.0;
}

v1::GenerateRequest RandomRequest(std::mt19937& random) {
  v1::GenerateRequest request;
  const auto prompt_tokens = 1 + random() % (random() % 8 == 0 ? 2000 : 200);
  // A quarter of the prompts share their beginning.
  const bool shared = random() % 4 == 0;
  for (size_t i = 0; i < prompt_tokens; ++i) {
    request.mutable_token_ids()->add_ids(
        300 + static_cast<uint32_t>(shared ? i * 37 % 7000 : random() % 7000));
  }
  request.mutable_stopping()->set_max_tokens(static_cast<int32_t>(8 + random() % 120));
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(random() % 2 == 0 ? 0.0f : 0.8f);
  if (random() % 3 == 0) request.mutable_attention()->mutable_full();
  return request;
}

void RunStream(const std::string& address, uint32_t seed, const std::atomic<bool>& stop,
               StreamTotals& totals) {
  std::mt19937 random(seed);
  const auto stub =
      v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  while (!stop && totals.error.empty()) {
    const v1::GenerateRequest request = RandomRequest(random);
    const bool cancel = random() % 10 == 0;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(110));
    const auto reader = stub->Generate(&context, request);
    v1::GenerateResponse message;
    bool finished = false;
    int messages = 0;
    while (reader->Read(&message)) {
      if (++messages == 3 && cancel) context.TryCancel();
      if (!message.has_finished()) continue;
      finished = true;
      totals.tokens += message.finished().usage().output_tokens();
      totals.preemptions += message.finished().preemptions();
    }
    const grpc::Status status = reader->Finish();
    if (status.ok() && finished) {
      ++totals.calls;
    } else if (cancel && status.error_code() == grpc::StatusCode::CANCELLED) {
      ++totals.cancelled;
    } else {
      totals.error = std::to_string(status.error_code()) + " " + status.error_message();
    }
  }
}

int Complain(const std::string& what) {
  std::cerr << "soak: " << what << "\n";
  return 1;
}

int Run(const Options& options) {
  EngineOptions engine_options;
  engine_options.model_dir = options.model_dir;
  engine_options.kv_pool_bytes = options.kv_pool_bytes;
  engine_options.max_running = options.streams;
  engine_options.max_step_tokens = std::max(256, options.streams);
  auto engine = Engine::Create(engine_options);
  if (!engine.ok()) return Complain(std::string(engine.status().message()));
  ServerOptions server_options;
  server_options.listen = "127.0.0.1:0";
  auto server = Server::Start(server_options, {.engine = **engine});
  if (!server.ok()) return Complain(std::string(server.status().message()));

  std::atomic<bool> stop = false;
  std::vector<StreamTotals> totals(static_cast<size_t>(options.streams));
  std::vector<std::thread> streams;
  for (int i = 0; i < options.streams; ++i) {
    streams.emplace_back([&, i] {
      RunStream((*server)->address(), static_cast<uint32_t>(i + 1), stop,
                totals[static_cast<size_t>(i)]);
    });
  }
  // Memory is compared from the last third's beginning on: by then pools and arenas are warm.
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::seconds(options.seconds) * 2 / 3);
  const double warm = ResidentMegabytes();
  std::this_thread::sleep_until(begin + std::chrono::seconds(options.seconds));
  const double end = ResidentMegabytes();
  stop = true;
  for (std::thread& stream : streams) stream.join();
  while ((*engine)->Snapshot().running + (*engine)->Snapshot().waiting > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const EngineSnapshot snapshot = (*engine)->Snapshot();
  (*server)->Drain();

  StreamTotals sum;
  int64_t least = totals[0].tokens;
  int64_t most = totals[0].tokens;
  for (const StreamTotals& one : totals) {
    if (!one.error.empty()) return Complain("a call failed: " + one.error);
    sum.calls += one.calls;
    sum.cancelled += one.cancelled;
    sum.tokens += one.tokens;
    sum.preemptions += one.preemptions;
    least = std::min(least, one.tokens);
    most = std::max(most, one.tokens);
  }
  std::printf(
      "%d streams, %d s: %ld calls, %ld cancelled, %ld tokens (%.0f per s), %ld preemptions\n",
      options.streams, options.seconds, sum.calls, sum.cancelled, sum.tokens,
      static_cast<double>(sum.tokens) / options.seconds, sum.preemptions);
  std::printf("tokens per stream: least %ld, most %ld\n", least, most);
  std::printf("resident: %.1f MB after two thirds, %.1f MB at the end; blocks in use: %d\n", warm,
              end, snapshot.blocks_used);
  if (snapshot.blocks_used != 0) return Complain("blocks are still in use");
  if (least == 0) return Complain("a stream got nothing");
  if (options.seconds >= 60 && most > 3 * least) return Complain("streams were served unequally");
  if (options.seconds >= 60 && end > warm + 8.0) return Complain("memory grows");
  return 0;
}

}  // namespace
}  // namespace eta::bench

int main(int argc, char** argv) {
  eta::bench::Options options;
  CLI::App app("Many concurrent streams for a while: errors, leaks, fairness");
  app.add_option("--model", options.model_dir, "Checkpoint folder")->capture_default_str();
  app.add_option("--streams", options.streams)->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--seconds", options.seconds)->check(CLI::Range(1, 86400))->capture_default_str();
  app.add_option("--kv_pool_bytes", options.kv_pool_bytes)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return eta::bench::Run(options);
}
