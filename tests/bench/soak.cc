// A soak test: many clients of four tenants at one server, in one process over a real socket, for a
// given time. First they run as fast as they can, then at a share of the rate that this gave. There
// are answers of every kind and length, cancelled calls, changing profiles, calibrations, Stats,
// metrics and a log. No call may fail, and everything taken must come back: KV blocks, memory, file
// descriptors, threads.
//
//   build/bin/soak --model=models/eta-27m --seconds=1800
//
// Prints a table with one row per sample. Exits with 1, naming it, if something did not come back.
#include <fcntl.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "calibration/profiles/profile_json.h"
#include "calibration/profiles/profile_store.h"
#include "calibration/profiles/store/open_profile_store.h"
#include "engine/front/engine.h"
#include "eta/v1/profiles.grpc.pb.h"
#include "eta/v1/service.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "prometheus/text_serializer.h"
#include "service/calls/records/call_log.h"
#include "service/log/log.h"
#include "service/process/large_blocks.h"
#include "service/server/server.h"
#include "service/stats/page/status_collector.h"
#include "service/telemetry/telemetry.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/identity/tenant_header.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using testing::kTenantHeader;

constexpr int kTenants = 4;
constexpr char kProfile[] = "soak";
// Versions of a profile; at this number the profile is deleted.
constexpr int kVersions = 100;
// Memory is compared from this time on, or from a third of a shorter run: pools and arenas are warm
// then.
constexpr double kWarmSeconds = 600.0;
// In a shorter run memory proves nothing, and nothing is calibrated.
constexpr double kLongRun = 60.0;
constexpr double kMaxGrowth = 0.02;
constexpr double kMaxGrowthMegabytes = 100.0;
constexpr int kMaxMoreFiles = 8;
constexpr int kMaxMoreThreads = 8;

struct Options {
  std::string model_dir = "models/eta-27m";
  int streams = 64;
  int seconds = 300;
  double load = 0.8;
  int64_t kv_pool_bytes = int64_t{48} << 20;  // so small that there are preemptions
};

struct Totals {
  std::atomic<int64_t> calls = 0;
  std::atomic<int64_t> cancelled = 0;
  std::atomic<int64_t> tokens = 0;
  std::atomic<int64_t> preemptions = 0;
  std::atomic<int64_t> calibrations = 0;
  std::atomic<int64_t> errors = 0;
  std::mutex calibrating;  // held during a calibration, which takes some memory for a moment
  std::mutex mutex;
  std::string error;  // the first error; guarded by mutex

  void Fail(const std::string& what) {
    const std::lock_guard lock(mutex);
    if (errors++ == 0) error = what;
  }
};

// When the next call is due: at once, or at random times at a given rate.
class Arrivals {
 public:
  void SetRate(double calls_per_second) {
    const std::lock_guard lock(mutex_);
    rate_ = calls_per_second;
    next_ = Clock::now();
  }
  Clock::time_point Next() {
    const std::lock_guard lock(mutex_);
    if (rate_ == 0.0) return Clock::now();
    next_ += std::chrono::duration_cast<Clock::duration>(
        Seconds(std::exponential_distribution<>(rate_)(random_)));
    return next_;
  }

 private:
  std::mutex mutex_;
  std::mt19937 random_{1};
  double rate_ = 0.0;  // guarded by mutex_; 0: at once
  Clock::time_point next_;
};

v1::GenerateRequest RandomRequest(std::mt19937& random) {
  v1::GenerateRequest request;
  const auto prompt_tokens = 1 + random() % (random() % 8 == 0 ? 2000 : 200);
  // A quarter of the prompts have a common beginning.
  const bool shared = random() % 4 == 0;
  for (size_t i = 0; i < prompt_tokens; ++i) {
    request.mutable_token_ids()->add_ids(
        300 + static_cast<int32_t>(shared ? i * 37 % 7000 : random() % 7000));
  }
  request.mutable_stopping()->set_max_tokens(static_cast<int32_t>(8 + random() % 120));
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(random() % 2 == 0 ? 0.0f : 0.8f);
  const uint32_t mode = random() % 6;
  if (mode < 2) request.mutable_attention()->mutable_full();
  if (mode == 2) request.mutable_attention()->set_profile(kProfile);
  return request;
}

std::string TenantName(uint32_t number) {
  return "tenant-" + std::to_string(number % kTenants);
}

void Answer(v1::EtaService::Stub& stub, const std::string& tenant, std::mt19937& random,
            Totals& totals) {
  const v1::GenerateRequest request = RandomRequest(random);
  const bool cancel = random() % 10 == 0;
  grpc::ClientContext context;
  context.AddMetadata(kTenantHeader, tenant);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(110));
  const auto reader = stub.Generate(&context, request);
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
    totals.Fail(std::to_string(status.error_code()) + " " + status.error_message());
  }
}

void RunStream(const std::string& address, uint32_t seed, const std::atomic<bool>& stop,
               Arrivals& arrivals, Totals& totals) {
  std::mt19937 random(seed);
  const auto stub =
      v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  while (!stop) {
    const Clock::time_point due = arrivals.Next();
    // Waits in short pieces, so that the end of the run need not wait.
    while (!stop && Clock::now() < due) {
      std::this_thread::sleep_until(std::min(due, Clock::now() + std::chrono::milliseconds(100)));
    }
    if (!stop) Answer(*stub, TenantName(seed), random, totals);
  }
}

// The work of a tenant's operator: stores version after version of a profile, deletes them all when
// there are many, and reads Stats.
class Operator {
 public:
  Operator(const std::string& address, std::string tenant, std::string json)
      : tenant_(std::move(tenant)), json_(std::move(json)) {
    const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    eta_ = v1::EtaService::NewStub(channel);
    profiles_ = v1::ProfileService::NewStub(channel);
    stats_ = v1::EtaService::NewStub(channel);
  }

  grpc::Status Import(const std::string& name) {
    v1::ImportProfileRequest request;
    request.set_json(json_);
    request.set_name(name);
    v1::Profile profile;
    return profiles_->ImportProfile(Named().get(), request, &profile);
  }
  void Run(const std::atomic<bool>& stop, Totals& totals) {
    const std::string name = "churn";
    for (int round = 1; !stop; ++round) {
      Look(Import(name), totals);
      if (round % kVersions == 0) Look(Delete(name), totals);
      Look(LookAtStats(), totals);
      Pause(stop, std::chrono::seconds(5));
    }
  }
  void CalibrateAgainAndAgain(const std::atomic<bool>& stop, Totals& totals) {
    const std::string name = "calibrated";
    for (int round = 1; !stop; ++round) {
      {
        const std::lock_guard lock(totals.calibrating);
        Look(Calibrate(name), totals);
      }
      ++totals.calibrations;
      if (round % kVersions == 0) Look(Delete(name), totals);
      Pause(stop, std::chrono::seconds(20));
    }
  }

 private:
  // The context of a call; it lives as long as the statement.
  std::unique_ptr<grpc::ClientContext> Named() const {
    auto context = std::make_unique<grpc::ClientContext>();
    context->AddMetadata(kTenantHeader, tenant_);
    return context;
  }
  static void Look(const grpc::Status& status, Totals& totals) {
    if (!status.ok()) totals.Fail("operator: " + status.error_message());
  }
  static void Pause(const std::atomic<bool>& stop, std::chrono::milliseconds pause) {
    const auto end = Clock::now() + pause;
    while (!stop && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }

  grpc::Status Delete(const std::string& name) {
    v1::DeleteProfileRequest request;
    request.set_name(name);
    v1::DeleteProfileResponse response;
    return profiles_->DeleteProfile(Named().get(), request, &response);
  }
  grpc::Status LookAtStats() {
    v1::StatsRequest request;
    request.set_layers(true);
    v1::Stats stats;
    return stats_->Stats(Named().get(), request, &stats);
  }
  grpc::Status Calibrate(const std::string& name) {
    v1::CalibrateRequest request;
    request.set_name(name);
    request.set_sequence_tokens(256);
    request.mutable_target()->mutable_match_dynamic();
    request.set_allow_loss(true);
    for (int sample = 0; sample < 2; ++sample) {
      std::string text = sample == 0 ? "Of a girl. " : "Of a boy. ";
      while (text.size() < 4000) text += "Once upon a time there was a little girl. ";
      request.add_samples()->set_text(text);
    }
    const auto context = Named();
    const auto reader = eta_->Calibrate(context.get(), request);
    for (v1::CalibrateResponse message; reader->Read(&message);) {
    }
    return reader->Finish();
  }

  const std::string tenant_;
  const std::string json_;
  std::unique_ptr<v1::EtaService::Stub> eta_;
  std::unique_ptr<v1::ProfileService::Stub> profiles_;
  std::unique_ptr<v1::EtaService::Stub> stats_;
};

// What the process holds at one moment.
struct Sample {
  double seconds = 0.0;
  int64_t calls = 0;
  int64_t tokens = 0;
  double megabytes = 0.0;
  double allocated = 0.0;  // if this stays the same, growth is memory that the C library keeps
  int files = 0;
  int threads = 0;
  int blocks_used = 0;
  int running = 0;
};

Sample TakeSample(const Engine& engine, const Totals& totals, Seconds elapsed) {
  Sample sample{.seconds = elapsed.count(), .calls = totals.calls, .tokens = totals.tokens};
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key; status.ignore(4096, '\n')) {
    if (key == "VmRSS:") {
      double kilobytes = 0.0;
      status >> kilobytes;
      sample.megabytes = kilobytes / 1024.0;
    }
    if (key == "Threads:") status >> sample.threads;
  }
  const struct mallinfo2 heap = mallinfo2();
  sample.allocated = static_cast<double>(heap.uordblks + heap.hblkhd) / 1048576.0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++sample.files;
  }
  const EngineSnapshot snapshot = engine.Snapshot();
  sample.blocks_used = snapshot.blocks_used;
  sample.running = snapshot.running;
  return sample;
}

void Print(const Sample& sample, const Sample& before) {
  const double seconds = std::max(sample.seconds - before.seconds, 1e-3);
  std::printf("| %6.0f | %7.1f | %8.0f | %7.1f | %9.1f | %5d | %7d | %7d | %7d |\n", sample.seconds,
              static_cast<double>(sample.calls - before.calls) / seconds,
              static_cast<double>(sample.tokens - before.tokens) / seconds, sample.megabytes,
              sample.allocated, sample.files, sample.threads, sample.running, sample.blocks_used);
  std::fflush(stdout);
}

// Says what did not come back; empty if everything did.
std::string Judge(const std::vector<Sample>& samples, const Sample& end, const Totals& totals) {
  if (totals.errors > 0) return std::to_string(totals.errors) + " calls failed: " + totals.error;
  if (end.blocks_used != 0) return "blocks are still in use";
  if (totals.calls == 0) return "no call was answered";
  const double run = samples.back().seconds;
  if (run < kLongRun) return "";
  const double warm = std::min(kWarmSeconds, run / 3.0);
  const auto first = std::find_if(samples.begin(), samples.end(),
                                  [&](const Sample& sample) { return sample.seconds >= warm; });
  double most = 0.0;
  for (auto sample = first; sample != samples.end(); ++sample) {
    most = std::max(most, sample->megabytes);
  }
  const double growth = most - first->megabytes;
  std::printf("after the first %.0f s: %.1f MB, at most %.1f MB (%+.2f %%)\n", first->seconds,
              first->megabytes, most, 100.0 * growth / first->megabytes);
  if (growth > kMaxGrowth * first->megabytes || growth > kMaxGrowthMegabytes) {
    return "memory grows";
  }
  if (samples.back().files > first->files + kMaxMoreFiles) return "file descriptors grow";
  if (samples.back().threads > first->threads + kMaxMoreThreads) return "threads grow";
  return "";
}

int Complain(const std::string& what) {
  std::cerr << "soak: " << what << "\n";
  return 1;
}

std::string FittingProfile(const EngineInfo& info) {
  ProfileContent content = MakeContent(1, info.config.num_layers, info.config.num_query_heads);
  content.model_fingerprint = info.model_fingerprint;
  content.tokenizer_fingerprint = info.tokenizer_fingerprint;
  content.geometry.block_size = info.block_size;
  content.geometry.sub_block = info.sub_block;
  return *ProfileToJson({.name = kProfile, .version = 1, .content = content});
}

int Run(const Options& options) {
  ReturnLargeBlocks();  // as the server does
  Telemetry telemetry;
  EngineOptions engine_options;
  engine_options.model_dir = options.model_dir;
  engine_options.kv_pool_bytes = options.kv_pool_bytes;
  engine_options.max_running = options.streams;
  engine_options.max_step_tokens = std::max(256, options.streams);
  auto engine = Engine::Create(engine_options, &telemetry);
  if (!engine.ok()) return Complain(std::string(engine.status().message()));
  telemetry.SetModel((*engine)->info(), std::chrono::seconds(0));
  Log log({.fd = open("/dev/null", O_WRONLY | O_CLOEXEC)});
  CallLog call_log(log);
  StatusCollector page(telemetry);
  const TempFolder folder;
  auto store = OpenProfileStore(folder.path() + "/profiles.db");
  if (!store.ok()) return Complain(std::string(store.status().message()));
  ServerOptions server_options;
  server_options.listen = "127.0.0.1:0";
  server_options.tenant_header = kTenantHeader;
  const TelemetrySource counted = [&](const SnapshotQuery& query) {
    return telemetry.Snapshot(query);
  };
  const Calibrator calibrator = [](Engine& on, const CalibrationJob& job,
                                   const CalibrationObserver& observer, std::stop_token stop) {
    return Calibrate(on, job, observer, std::move(stop));
  };
  auto server = Server::Start(server_options, {.engine = **engine,
                                               .profiles = store->get(),
                                               .calibrate = calibrator,
                                               .telemetry = counted,
                                               .call_observers = {&call_log, &telemetry},
                                               .log = &log});
  if (!server.ok()) return Complain(std::string(server.status().message()));
  const std::string address = (*server)->address();
  page.SetServer([&] { return (*server)->Status(); });
  std::vector<std::unique_ptr<Operator>> operators;
  for (uint32_t i = 0; i < kTenants; ++i) {
    operators.push_back(
        std::make_unique<Operator>(address, TenantName(i), FittingProfile((*engine)->info())));
    if (const grpc::Status status = operators.back()->Import(kProfile); !status.ok()) {
      return Complain(status.error_message());
    }
  }

  std::atomic<bool> stop = false;
  Arrivals arrivals;
  Totals totals;
  std::vector<std::thread> threads;
  for (int i = 0; i < options.streams; ++i) {
    threads.emplace_back(
        [&, i] { RunStream(address, static_cast<uint32_t>(i + 1), stop, arrivals, totals); });
  }
  for (const auto& one : operators) {
    threads.emplace_back([&] { one->Run(stop, totals); });
  }

  const Clock::time_point begin = Clock::now();
  const auto sample_at = [&](double seconds) {
    std::this_thread::sleep_until(begin +
                                  std::chrono::duration_cast<Clock::duration>(Seconds(seconds)));
    const std::lock_guard lock(totals.calibrating);
    return TakeSample(**engine, totals, Clock::now() - begin);
  };
  const double peak_seconds = std::clamp(options.seconds / 6.0, 3.0, 120.0);
  const Sample filled = sample_at(peak_seconds / 3.0);  // all clients are busy by then
  const Sample peak = sample_at(peak_seconds);
  const double peak_rate =
      static_cast<double>(peak.calls - filled.calls) / (peak.seconds - filled.seconds);
  arrivals.SetRate(std::max(0.1, options.load * peak_rate));
  if (options.seconds >= kLongRun) {
    threads.emplace_back([&] { operators.front()->CalibrateAgainAndAgain(stop, totals); });
  }
  std::printf(
      "%d clients; at most %.1f calls, %.0f tokens a second; from now on %.0f %% of that\n\n",
      options.streams, peak_rate,
      static_cast<double>(peak.tokens - filled.tokens) / (peak.seconds - filled.seconds),
      100.0 * options.load);
  std::printf(
      "| second | calls/s | tokens/s |      MB | allocated | files | threads | running | blocks |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  std::vector<Sample> samples = {peak};
  const double interval = std::clamp(options.seconds / 30.0, 1.0, 300.0);
  while (samples.back().seconds < options.seconds) {
    samples.push_back(
        sample_at(std::min(samples.back().seconds + interval, options.seconds + 0.01)));
    if (prometheus::TextSerializer().Serialize(page.Collect()).empty())
      totals.Fail("no page of metrics");
    Print(samples.back(), samples[samples.size() - 2]);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  while ((*engine)->Snapshot().running + (*engine)->Snapshot().waiting > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const Sample end = TakeSample(**engine, totals, Clock::now() - begin);
  std::printf(
      "%ld calls, %ld cancelled, %ld failed, %ld tokens, %ld preemptions, %ld calibrations; blocks "
      "in use: %d\n",
      totals.calls.load(), totals.cancelled.load(), totals.errors.load(), totals.tokens.load(),
      totals.preemptions.load(), totals.calibrations.load(), end.blocks_used);
  const std::string fault = Judge(samples, end, totals);
  page.SetServer(nullptr);
  (*server)->Drain();
  return fault.empty() ? 0 : Complain(fault);
}

}  // namespace
}  // namespace eta::bench

int main(int argc, char** argv) {
  eta::bench::Options options;
  CLI::App app("Many clients for a while: errors, leaks");
  app.add_option("--model", options.model_dir, "Checkpoint folder")->capture_default_str();
  app.add_option("--streams", options.streams, "Clients")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds)->check(CLI::Range(5, 86400))->capture_default_str();
  app.add_option("--load", options.load, "Share of what the server can do")
      ->check(CLI::Range(0.05, 2.0))
      ->capture_default_str();
  app.add_option("--kv_pool_bytes", options.kv_pool_bytes)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return eta::bench::Run(options);
}
