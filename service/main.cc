// eta-server: flags, engine, server; then signals until it is time to go.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "calibration/calibrator.h"
#include "calibration/profiles/profile_store.h"
#include "calibration/profiles/store/open_profile_store.h"
#include "engine/base/error.h"
#include "engine/engine.h"
#include "google/protobuf/stubs/logging.h"
#include "kernels/failpoint_file.h"
#include "service/calls/records/audit_log.h"
#include "service/calls/records/call_log.h"
#include "service/limits/tenant_limits.h"
#include "service/log/grpc_log.h"
#include "service/log/log.h"
#include "service/options/flags.h"
#include "service/options/insecure_choices.h"
#include "service/process/descriptors.h"
#include "service/process/large_blocks.h"
#include "service/process/process_hardening.h"
#include "service/process/step_cpus.h"
#include "service/server.h"
#include "service/telemetry/page/metrics_page.h"
#include "service/telemetry/page/metrics_server.h"
#include "service/telemetry/telemetry.h"

namespace eta {
namespace {

constexpr std::chrono::seconds kLastScrape{1};  // the final figures can be read for so long
constexpr int kExitDeviceLost = 3;
constexpr int kExitStoreFailed = 4;
constexpr int kExitOutOfMemory = 5;
constexpr unsigned kLastSeconds = 10;  // for a process that ends because it has no memory
constexpr timespec kPollInterval{.tv_sec = 1, .tv_nsec = 0};

// Stop signals are taken with sigtimedwait, so every thread must inherit them blocked.
sigset_t BlockStopSignals() {
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// Where memory is short in a thread that cannot answer for it.
[[noreturn]] void OnTerminate() {
  try {
    if (const auto failure = std::current_exception()) std::rethrow_exception(failure);
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kLastWords = "eta-server: out of memory\n";
    [[maybe_unused]] const ssize_t said =
        write(STDERR_FILENO, kLastWords.data(), kLastWords.size());
    _exit(kExitOutOfMemory);
  } catch (...) {  // a defect
  }
  std::abort();
}

// As far as this process may: a server that runs out of file descriptors stops accepting for good.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void SayWhatIsInsecure(const InsecureChoice& choice, Log& log) {
  log.Write(LogEvent(LogLevel::kWarning, "insecure", choice.flag + ": " + choice.why)
                .Add("flag", choice.flag)
                .Rank(LogRank::kChange));
}

void SayWhatIsServed(const Flags& flags, bool filtered, int step_cpus, const EngineInfo& info,
                     Log& log) {
  const std::string message =
      "model " + info.model_name + " (" + info.model_fingerprint.substr(0, 12) + "), " +
      info.backend + ", KV cache of " + std::to_string(info.num_blocks) + " blocks of " +
      std::to_string(info.config.block_size) + " tokens in " + std::string(Name(info.kv_dtype)) +
      ", records in " + std::string(Name(info.index_dtype));
  log.Write(LogEvent(LogLevel::kInfo, "start", message)
                .Add("version", ETA_VERSION)
                .Add("model", info.model_name)
                .Add("model_fingerprint", info.model_fingerprint)
                .Add("backend", info.backend)
                .Add("devices", flags.engine.devices.size())
                .Add("kv_blocks", info.num_blocks)
                .Add("block_size", info.config.block_size)
                .Add("kv_dtype", Name(info.kv_dtype))
                .Add("index_dtype", Name(info.index_dtype))
                .Add("system_calls_filtered", filtered)
                .Add("step_cpus", step_cpus)
                .Add("flags", flags.given));
}

// Says once what the store's trouble is, and once that it is over.
class StoreReport {
 public:
  StoreReport(const ProfileStore* store, Log& log) : store_(store), log_(log) {}

  // False: the store could not write what it must, and only opening it anew tells what its disk
  // holds.
  bool Look() {
    if (store_ == nullptr) return true;
    const absl::Status health = store_->Health();
    const std::string reason = GetErrorDetail(health).reason;
    if (health.message() != said_) {
      said_ = std::string(health.message());
      log_.Write(health.ok()
                     ? LogEvent(LogLevel::kInfo, "store_ok", "profile store: in order again")
                     : LogEvent(LogLevel::kError, "store_trouble", "profile store: " + said_)
                           .Add("reason", reason));
    }
    return reason != "STORE_FAILED";
  }

 private:
  const ProfileStore* const store_;
  Log& log_;
  std::string said_;
};

void SayMemory(Pressure level, double used, Log& log) {
  constexpr std::string_view kSentences[kPressures] = {
      "no longer short of memory", "short of memory: calls are refused",
      "out of memory soon: the largest answers are given up"};
  const bool over = level == Pressure::kNone;
  log.Write(LogEvent(over ? LogLevel::kInfo : LogLevel::kWarning,
                     over ? "memory_ok" : "memory_pressure",
                     std::string(kSentences[static_cast<size_t>(level)]))
                .Add("pressure", Name(level))
                .Add("memory_used", used));
}

void SayLimits(const absl::Status& status, Log& log) {
  LogEvent event = status.ok()
                       ? LogEvent(LogLevel::kInfo, "reloaded", "--tenants: new limits hold")
                       : LogEvent(LogLevel::kError, "reload_failed",
                                  std::string(status.message()) + "; the limits before it hold");
  log.Write(std::move(event.Add("file", "tenants")));
}

int Run(Flags flags) {
  ReturnLargeBlocks();
  const sigset_t signals = BlockStopSignals();
  std::set_terminate(OnTerminate);
  const absl::StatusOr<bool> filtered = HardenByFlags(flags.process, flags.GeneratesCode());
  const std::unique_ptr<FailpointFile> failpoints = FailpointFile::FromEnvironment();
  // One line per hostile message is too many: the caller gets the error.
  google::protobuf::SetLogHandler(nullptr);
  BuildDescriptors();
  RaiseFileLimit();
  Log log(flags.log);
  const GrpcLog grpc_log(log);
  const auto bad_start = [&log](std::string why) {
    log.Write(LogEvent(LogLevel::kError, "bad_start", std::move(why)));
    return kExitBadStart;
  };

  if (!filtered.ok()) {
    return bad_start("--system_call_filter: " + std::string(filtered.status().message()));
  }
  const absl::Status read = ReadSecrets(flags);
  if (!read.ok()) return bad_start(std::string(read.message()));
  const absl::Status checked = Server::Check(flags.server, flags.engine.limits);
  if (!checked.ok()) return bad_start(std::string(checked.message()));
  for (const InsecureChoice& choice : InsecureChoices(flags, *filtered)) {
    SayWhatIsInsecure(choice, log);
  }
  if (failpoints != nullptr) {
    SayWhatIsInsecure(
        {.flag = "ETA_FAILPOINTS", .why = "whoever writes this file may make the server fail"},
        log);
  }
  auto limits = std::make_unique<TenantLimits>();
  if (!flags.tenants.empty()) {
    auto opened = TenantLimits::Open(
        flags.tenants, [&log](const absl::Status& status) { SayLimits(status, log); });
    if (!opened.ok()) return bad_start(std::string(opened.status().message()));
    limits = *std::move(opened);
  }
  flags.profile_store_options.quota_of = [&limits = *limits](const Tenant& tenant) {
    return limits.Of(tenant).profiles;
  };
  std::unique_ptr<ProfileStore> profiles;
  if (!flags.profile_store.empty()) {
    auto store = OpenProfileStore(flags.profile_store, flags.profile_store_options);
    if (!store.ok()) return bad_start("--profile_store: " + std::string(store.status().message()));
    profiles = *std::move(store);
  }
  Telemetry telemetry(flags.telemetry);
  MetricsPage metrics_page(telemetry);
  std::unique_ptr<MetricsServer> metrics;  // from here on, so that loading can be watched
  if (!flags.server.metrics_listen.empty()) {
    auto started = MetricsServer::Start(flags.server.metrics_listen,
                                        [&metrics_page] { return metrics_page.Write(); });
    if (!started.ok()) return bad_start(std::string(started.status().message()));
    metrics = *std::move(started);
    log.Write(LogEvent(LogLevel::kInfo, "metrics_listening", "metrics on " + metrics->url())
                  .Add("url", metrics->url()));
    std::cout << "metrics on " << metrics->url() << std::endl;
  }
  const Clock::time_point load_begin = Clock::now();
  auto engine = Engine::Create(flags.engine, &telemetry);
  if (!engine.ok()) return bad_start(std::string(engine.status().message()));
  telemetry.SetModel((*engine)->info(), Clock::now() - load_begin);
  // The engine's threads are there, and may run on all CPUs.
  const absl::StatusOr<int> step_cpus = LeaveStepCpus(flags.Gpus());
  if (!step_cpus.ok()) {
    log.Write(
        LogEvent(LogLevel::kWarning, "no_step_cpus",
                 "calls may take the CPUs of steps: " + std::string(step_cpus.status().message())));
  }
  SayWhatIsServed(flags, *filtered, step_cpus.value_or(0), (*engine)->info(), log);
  flags.server.memory.on_change = [&log](Pressure level, double used) {
    SayMemory(level, used, log);
  };
  CallLog call_log(log);
  AuditLog audit_log(log);
  auto server = Server::Start(
      flags.server,
      {.engine = **engine,
       .profiles = profiles.get(),
       .calibrate = Calibrate,
       .telemetry = [&telemetry](const SnapshotQuery& query) { return telemetry.Snapshot(query); },
       .call_observers = {&call_log, &audit_log, &telemetry},
       .log = &log,
       .limits = limits.get()});
  if (!server.ok()) return bad_start(std::string(server.status().message()));
  metrics_page.SetServer([&server] { return (*server)->Figures(); });
  const absl::Cleanup no_figures = [&metrics_page] { metrics_page.SetServer(nullptr); };
  std::cout << "listening on " << (*server)->address() << std::endl;

  const auto ran_out_of_memory = [&engine] {
    const std::vector<EngineSnapshot> devices = (*engine)->Devices();
    return std::any_of(devices.begin(), devices.end(),
                       [](const EngineSnapshot& device) { return device.out_of_memory; });
  };
  std::vector<bool> lost((*engine)->Devices().size());
  StoreReport store_report(profiles.get(), log);
  bool store_failed = false;
  while (sigtimedwait(&signals, nullptr, &kPollInterval) < 0) {
    store_failed = !store_report.Look();
    if (store_failed) break;
    if (ran_out_of_memory()) {
      std::signal(SIGALRM, [](int) { _exit(kExitOutOfMemory); });
      alarm(kLastSeconds);
      log.Write(LogEvent(LogLevel::kError, "exit",
                         "a step had no memory on the host; exiting, to be started again"));
      (*server)->HurryDrain();
      (*server)->Drain();  // the errors of what ran reach their clients
      return kExitOutOfMemory;
    }
    const std::vector<EngineSnapshot> devices = (*engine)->Devices();
    for (size_t i = 0; i < devices.size(); ++i) {
      if (!devices[i].device_lost || lost[i]) continue;
      lost[i] = true;
      const int device = flags.engine.devices[i];
      log.Write(LogEvent(LogLevel::kError, "device_lost",
                         "device " + std::to_string(device) + " has failed")
                    .Add("device", device));
    }
    if ((*engine)->Snapshot().device_lost) {
      log.Write(
          LogEvent(LogLevel::kError, "exit", "no device is left; exiting, to be started again"));
      (*server)->HurryDrain();
      (*server)->Drain();  // the errors of what ran reach their clients
      return kExitDeviceLost;
    }
  }
  const auto patience = flags.server.drain_delay + flags.server.drain_timeout;
  log.Write(LogEvent(LogLevel::kInfo, "drain_begin",
                     "stopping: running calls have up to " +
                         std::to_string(patience.count() / 1000) + " s")
                .Add("drain_delay_ms", flags.server.drain_delay.count())
                .Add("drain_timeout_ms", flags.server.drain_timeout.count()));
  std::atomic<bool> drained = false;
  std::thread drain([&] {
    (*server)->Drain();
    drained = true;
    kill(getpid(), SIGTERM);  // wakes the wait below
  });
  while (sigwaitinfo(&signals, nullptr) < 0) {  // interrupted: the process was stopped and goes on
  }
  if (!drained) {
    log.Write(
        LogEvent(LogLevel::kWarning, "drain_hurried", "second signal: running calls end now"));
    (*server)->HurryDrain();
  }
  drain.join();
  const bool device_lost = (*engine)->Snapshot().device_lost;
  if (metrics != nullptr) std::this_thread::sleep_for(kLastScrape);
  metrics.reset();  // asks the server how it stands
  server->reset();
  engine->reset();
  log.Write(LogEvent(LogLevel::kInfo, "stop", "stopped"));
  if (device_lost) return kExitDeviceLost;
  return store_failed ? kExitStoreFailed : EXIT_SUCCESS;
}

}  // namespace
}  // namespace eta

int main(int argc, char** argv) {
  eta::HardenBeforeFlags();
  eta::ParsedFlags parsed = eta::ParseFlags(argc, argv);
  if (!parsed.flags) return parsed.exit_code;
  try {
    return eta::Run(std::move(*parsed.flags));
  } catch (const std::bad_alloc&) {
    std::cerr << "eta-server: out of memory" << std::endl;
    return eta::kExitOutOfMemory;
  } catch (const std::exception& failure) {  // no threads
    std::cerr << "eta-server: " << failure.what() << std::endl;
    return eta::kExitBadStart;
  }
}
