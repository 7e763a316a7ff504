// eta-server: flags, engine, server; then signals until it is time to go.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "calibration/calibrator.h"
#include "calibration/profile_store.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "google/protobuf/stubs/logging.h"
#include "service/flags.h"
#include "service/server.h"

namespace eta {
namespace {

constexpr int kExitDeviceLost = 3;
constexpr int kExitStoreFailed = 4;
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

void Say(const std::string& line) {
  std::cerr << "eta-server: " << line << std::endl;
}

void SayWhatIsInsecure(const Flags& flags) {
  if (flags.server.allow_unauthenticated_network) {
    Say("INSECURE: --allow_unauthenticated_network: whoever reaches " + flags.server.listen +
        " may use it, and calls are not encrypted");
  }
  if (!flags.server.tenant_header.empty()) {
    Say("--tenant_header: whoever reaches this server may name any tenant in " +
        flags.server.tenant_header);
  }
  if (flags.server.reflection) Say("INSECURE: --reflection: clients may list the API");
  if (flags.engine.allow_nonfinite_weights) {
    Say("--allow_nonfinite_weights: the model's numbers are not checked");
  }
}

// Says once what the store's trouble is, and once that it is over.
class StoreReport {
 public:
  explicit StoreReport(const ProfileStore* store) : store_(store) {}

  // False: the store could not write what it must, and only opening it anew tells what its disk
  // holds.
  bool Look() {
    if (store_ == nullptr) return true;
    const absl::Status health = store_->Health();
    if (health.message() != said_) {
      said_ = std::string(health.message());
      Say("profile store: " + (health.ok() ? "in order again" : said_));
    }
    return GetErrorDetail(health).reason != "STORE_FAILED";
  }

 private:
  const ProfileStore* const store_;
  std::string said_;
};

int Run(Flags flags) {
  const sigset_t signals = BlockStopSignals();
  // One line per hostile message is too many: the caller gets the error.
  google::protobuf::SetLogHandler(nullptr);

  absl::Status listen = CheckListenAddress(flags.server);
  if (!listen.ok()) {
    Say(std::string(listen.message()));
    return kExitBadStart;
  }
  SayWhatIsInsecure(flags);
  std::unique_ptr<ProfileStore> profiles;
  if (!flags.profile_store.empty()) {
    auto store = OpenProfileStore(flags.profile_store, flags.profile_store_options);
    if (!store.ok()) {
      Say("--profile_store: " + std::string(store.status().message()));
      return kExitBadStart;
    }
    profiles = *std::move(store);
  }
  auto engine = Engine::Create(flags.engine);
  if (!engine.ok()) {
    Say(std::string(engine.status().message()));
    return kExitBadStart;
  }
  flags.server.memory.on_change = [](bool high) {
    Say(high ? "short of memory: calls are refused" : "no longer short of memory");
  };
  auto server = Server::Start(
      flags.server, {.engine = **engine, .profiles = profiles.get(), .calibrate = Calibrate});
  if (!server.ok()) {
    Say(std::string(server.status().message()));
    return kExitBadStart;
  }
  const EngineInfo& info = (*engine)->info();
  Say("model " + info.model_name + " (" + info.model_fingerprint.substr(0, 12) + "), " +
      info.backend + ", KV cache of " + std::to_string(info.num_blocks) + " blocks of " +
      std::to_string(info.config.block_size) + " tokens in " + std::string(Name(info.kv_dtype)) +
      ", records in " + std::string(Name(info.index_dtype)));
  std::cout << "listening on " << (*server)->address() << std::endl;

  std::vector<bool> lost((*engine)->Devices().size());
  StoreReport store_report(profiles.get());
  bool store_failed = false;
  while (sigtimedwait(&signals, nullptr, &kPollInterval) < 0) {
    store_failed = !store_report.Look();
    if (store_failed) break;
    const std::vector<EngineSnapshot> devices = (*engine)->Devices();
    for (size_t i = 0; i < devices.size(); ++i) {
      if (!devices[i].device_lost || lost[i]) continue;
      lost[i] = true;
      Say("device " + std::to_string(flags.engine.devices[i]) + " has failed");
    }
    if ((*engine)->Snapshot().device_lost) {
      Say("no device is left; exiting, to be started again");
      (*server)->HurryDrain();
      (*server)->Drain();  // the errors of what ran reach their clients
      return kExitDeviceLost;
    }
  }
  Say("stopping: running calls have up to " +
      std::to_string((flags.server.drain_delay + flags.server.drain_timeout).count() / 1000) +
      " s");
  std::atomic<bool> drained = false;
  std::thread drain([&] {
    (*server)->Drain();
    drained = true;
    kill(getpid(), SIGTERM);  // wakes the wait below
  });
  sigwaitinfo(&signals, nullptr);
  if (!drained) {
    Say("second signal: running calls end now");
    (*server)->HurryDrain();
  }
  drain.join();
  const bool device_lost = (*engine)->Snapshot().device_lost;
  server->reset();
  engine->reset();
  Say("stopped");
  if (device_lost) return kExitDeviceLost;
  return store_failed ? kExitStoreFailed : EXIT_SUCCESS;
}

}  // namespace
}  // namespace eta

int main(int argc, char** argv) {
  eta::ParsedFlags parsed = eta::ParseFlags(argc, argv);
  if (!parsed.flags) return parsed.exit_code;
  try {
    return eta::Run(std::move(*parsed.flags));
  } catch (const std::exception& failure) {  // no memory, no threads
    std::cerr << "eta-server: " << failure.what() << std::endl;
    return eta::kExitBadStart;
  }
}
