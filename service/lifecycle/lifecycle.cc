#include "service/lifecycle/lifecycle.h"

#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <utility>
#include <vector>

#include "calibration/calibrate/calibrator.h"
#include "calibration/profiles/store/open_profile_store.h"
#include "engine/base/status_macros.h"
#include "google/protobuf/stubs/logging.h"
#include "service/lifecycle/lifecycle_log.h"
#include "service/process/descriptors.h"
#include "service/process/exit.h"
#include "service/process/large_blocks.h"
#include "service/process/process_hardening.h"
#include "service/process/step_cpus.h"

namespace eta {
namespace {

constexpr std::chrono::seconds kLastScrape{1};  // the page can be read for so long after the drain
constexpr std::chrono::seconds kLastSpans{2};   // to send the spans of what ended in the drain
constexpr std::chrono::seconds kFailurePoll{1};

// As far as this process may: a server that runs out of file descriptors stops accepting for good.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The status, with the flag that it is about before its message.
absl::Status OfFlag(const char* flag, const absl::Status& status) {
  if (status.ok()) return status;
  return {status.code(), std::string(flag) + ": " + std::string(status.message())};
}

}  // namespace

Lifecycle::~Lifecycle() {
  if (collector_) collector_->SetServer(nullptr);  // the server goes before the page
}

void Lifecycle::ForkFormatHelper() {
  if (!HasGrammarLibrary()) return;
  FormatHelperOptions& options = flags_.format_helper;
  options.harden_helper = [process = flags_.process] { HardenFormatHelper(process); };
  options.harden_child = [process = flags_.process] { HardenCompilation(process); };
  format_helper_ = FormatHelper::Start(options);
}

void Lifecycle::Harden() {
  ReturnLargeBlocks();
  ExitWhereMemoryEnds();
  filtered_ = HardenByFlags(flags_.process, flags_.GeneratesCode());
  failpoints_ = FailpointFile::FromEnvironment();
  // One line per hostile message is too many: the caller gets the error.
  google::protobuf::SetLogHandler(nullptr);
  BuildDescriptors();
  RaiseFileLimit();
}

void Lifecycle::OpenLog() {
  signals_.Begin();
  log_.emplace(flags_.log);
  grpc_log_.emplace(*log_);
}

int Lifecycle::BadStart(const absl::Status& why) {
  log_->Write(LogEvent(LogLevel::kError, "bad_start", std::string(why.message())));
  return kExitBadStart;
}

absl::Status Lifecycle::CheckFlags() {
  RETURN_IF_ERROR(OfFlag("--system_call_filter", filtered_.status()));
  RETURN_IF_ERROR(ReadSecrets(flags_));
  RETURN_IF_ERROR(ReadChatTemplate(flags_));
  RETURN_IF_ERROR(Server::Check(flags_.server, flags_.engine.limits));
  RETURN_IF_ERROR(format_helper_.status());
  LogInsecureChoices(flags_, *filtered_, failpoints_ != nullptr, *log_);
  return absl::OkStatus();
}

absl::Status Lifecycle::OpenLimits() {
  if (flags_.tenants.empty()) {
    limits_ = std::make_unique<TenantLimits>();
    return absl::OkStatus();
  }
  auto opened = TenantLimits::Open(
      flags_.tenants, [this](const absl::Status& status) { LogLimits(status, *log_); });
  if (opened.ok()) limits_ = *std::move(opened);
  return opened.status();
}

absl::Status Lifecycle::OpenStore() {
  if (flags_.profile_store.empty()) return absl::OkStatus();
  ProfileStoreOptions options = flags_.profile_store_options;
  options.quota_of = [this](const Tenant& tenant) { return limits_->Of(tenant).profiles; };
  // The store is asked for profiles once the server has started.
  options.served_model = [this] {
    return ServedModel{.fingerprint = engine_->info().model_fingerprint};
  };
  options.on_removed = [this](const Tenant& tenant, const std::string& name,
                              const std::vector<int64_t>& versions) {
    LogRemovedVersions(tenant, name, versions, *log_);
  };
  auto opened = OpenProfileStore(flags_.profile_store, options);
  if (opened.ok()) profiles_ = *std::move(opened);
  return OfFlag("--profile_store", opened.status());
}

// Before the engine, so that its loading can be watched.
absl::Status Lifecycle::ServeMetrics() {
  telemetry_.emplace(flags_.telemetry);
  collector_ = std::make_shared<StatusCollector>(*telemetry_, flags_.telemetry.vllm_names);
  if (flags_.server.metrics_listen.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(metrics_, MetricsExposer::Start(flags_.server.metrics_listen, collector_));
  log_->Write(LogEvent(LogLevel::kInfo, "metrics_listening", "metrics on " + metrics_->url())
                  .Add("url", metrics_->url()));
  std::cout << "metrics on " << metrics_->url() << std::endl;
  return absl::OkStatus();
}

// Before the engine, so that its first event is there. Gateways may ask for events too.
absl::Status Lifecycle::PublishKvEvents() {
  const KvEventOptions& options = flags_.server.kv_events;
  if (!options.publish.empty() && !flags_.engine.prefix_cache) {
    return absl::InvalidArgumentError("--kv_events: needs --prefix_cache, whose events they are");
  }
  if (flags_.engine.prefix_cache &&
      !(options.publish.empty() && flags_.server.vllm_listen.empty())) {
    flags_.engine.kv_events = kv_events_.emplace().log();
  }
  if (options.publish.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(kv_publisher_,
                   KvEventPublisher::Start(options, *kv_events_, [this](const absl::Status& why) {
                     LogKvEventTrouble(why, *log_);
                   }));
  LogKvEvents(kv_publisher_->address(), kv_publisher_->replay_address(), *log_);
  std::cout << "kv events on " << kv_publisher_->address() << std::endl;
  if (!options.replay.empty()) {
    std::cout << "kv events again on " << kv_publisher_->replay_address() << std::endl;
  }
  return absl::OkStatus();
}

absl::Status Lifecycle::LoadEngine() {
  const Clock::time_point begin = Clock::now();
  flags_.engine.keep_tokenizer_files = !flags_.server.vllm_listen.empty();
  flags_.engine.format_helper = format_helper_->get();
  const UsableCpus cpus = ReadUsableCpus();  // before some are left to steps
  LogTooManyThreads(cpus, flags_.engine.backend, *log_);
  ASSIGN_OR_RETURN(engine_, Engine::Create(flags_.engine, &*telemetry_));
  telemetry_->SetModel(engine_->info(), Clock::now() - begin);
  // The engine's threads are there, and may run on all CPUs.
  const absl::StatusOr<int> step_cpus = LeaveStepCpus(flags_.Gpus());
  if (!step_cpus.ok()) {
    log_->Write(
        LogEvent(LogLevel::kWarning, "no_step_cpus",
                 "calls may take the CPUs of steps: " + std::string(step_cpus.status().message())));
  }
  LogStart(flags_, *filtered_, cpus, step_cpus.value_or(0), engine_->info(), *log_);
  LogChatTemplate(engine_->info(), *log_);
  return absl::OkStatus();
}

absl::Status Lifecycle::StartServer() {
  flags_.server.memory.on_change = [this](Pressure level, double used) {
    LogPressure(level, used, *log_);
  };
  call_log_.emplace(*log_);
  audit_log_.emplace(*log_);
  std::vector<CallObserver*> observers = {&*call_log_, &*audit_log_, &*telemetry_};
  spans_ = MakeSpanExporter(flags_.server, engine_->info().model_name, *log_);
  if (spans_ != nullptr) observers.push_back(spans_.get());
  ASSIGN_OR_RETURN(
      server_,
      Server::Start(
          flags_.server,
          {.engine = *engine_,
           .profiles = profiles_.get(),
           .calibrate = Calibrate,
           .telemetry = [this](const SnapshotQuery& query) { return telemetry_->Snapshot(query); },
           .call_observers = std::move(observers),
           .log = &*log_,
           .limits = limits_.get(),
           .kv_events = kv_events_ ? &*kv_events_ : nullptr}));
  collector_->SetServer([this] {
    ServerStatus status = server_->Status();
    if (spans_ != nullptr) status.spans = spans_->Counts();
    return status;
  });
  for (const auto& listener : server_->vllm_listeners()) {
    std::cout << "gateways on " << listener->address() << std::endl;
  }
  std::cout << "listening on " << server_->address() << std::endl;
  return absl::OkStatus();
}

void Lifecycle::AwaitStop() {
  watch_.emplace(*engine_, flags_.engine.devices, profiles_.get(), *log_,
                 [this] { return server_->stalled(); });
  while (!failure_ && !signals_.Await(kFailurePoll)) failure_ = watch_->Poll();
}

void Lifecycle::Drain() {
  if (CannotServe()) return EndAtOnce();
  LogDrain(flags_.server, *log_);
  std::atomic<bool> drained = false;
  std::thread drain([&] {
    server_->Drain();
    drained = true;
    signals_.Wake();
  });
  while (!drained && !MustHurry()) {
  }
  if (!drained) server_->HurryDrain();
  drain.join();
  if (spans_ != nullptr) spans_->Finish(kLastSpans);
}

void Lifecycle::EndAtOnce() {
  ExitAfter(*failure_ == Failure::kHung ? kHungSeconds : kLastSeconds, exit_code());
  LogEnd(*failure_, *log_);
  server_->HurryDrain();
  server_->Drain();  // the errors of what ran reach their clients
}

bool Lifecycle::MustHurry() {
  if (signals_.Await(kFailurePoll)) {
    log_->Write(
        LogEvent(LogLevel::kWarning, "drain_hurried", "second signal: running calls end now"));
    return true;
  }
  if (watch_->Poll() != Failure::kHung) return false;
  ExitAfter(kHungSeconds, kExitHung);
  LogEnd(Failure::kHung, *log_);
  return true;
}

void Lifecycle::Stop() {
  if (CannotServe()) return;
  device_lost_ = engine_->Snapshot().device_lost;
  if (metrics_ != nullptr) std::this_thread::sleep_for(kLastScrape);
  metrics_.reset();  // asks the server how it stands
  collector_->SetServer(nullptr);
  server_.reset();
  engine_.reset();
  kv_publisher_.reset();
  log_->Write(LogEvent(LogLevel::kInfo, "stop", "stopped"));
}

int Lifecycle::exit_code() const {
  if (failure_ == Failure::kOutOfMemory) return kExitOutOfMemory;
  if (failure_ == Failure::kHung) return kExitHung;
  if (failure_ == Failure::kDevicesLost || device_lost_) return kExitDeviceLost;
  return failure_ == Failure::kStoreFailed ? kExitStoreFailed : EXIT_SUCCESS;
}

}  // namespace eta
