#include "service/server/call_resources.h"

#include <algorithm>

#include "kernels/system/usable_cpus.h"

namespace eta {
namespace {

constexpr int kStoreThreads = 4;
constexpr size_t kMaxWaitingStoreCalls = 128;
constexpr size_t kOperatorsStoreCalls = 8;  // of them, places that only operators may have

std::unique_ptr<ProfileCache> MakeCache(const ServerOptions& options, ProfileStore* store) {
  if (store == nullptr) return nullptr;
  return std::make_unique<ProfileCache>(
      *store, ProfileCacheOptions{.staleness = options.profile_staleness});
}

WorkerPoolOptions StoreThreads(const ProfileStore* store) {
  return {.threads = store != nullptr ? kStoreThreads : 0,
          .waiting = kMaxWaitingStoreCalls,
          .operators = kOperatorsStoreCalls};
}

// A tenant alone may have half of the places: as many texts as requests may wait. The threads have
// no lower priority: behind steps that take every CPU their texts would never be ready. gRPC's own
// sleep most of the time, and so the kernel lets them go first.
WorkerPoolOptions TokenizerThreads(const ServerOptions& options, const Limits& limits) {
  constexpr int kMostThreads = 8;
  constexpr int32_t kLeastTexts = 256;
  const int half = std::clamp(ReadUsableCpus().threads() / 2, 1, kMostThreads);
  return {.threads = options.tokenizer_threads > 0 ? options.tokenizer_threads : half,
          .waiting = 2 * static_cast<size_t>(std::max(limits.max_waiting_requests, kLeastTexts))};
}

// They wait for other processes that compile; so few CPUs need no fewer of them. One tenant's
// formats, however slow, leave half of them to the others.
WorkerPoolOptions FormatThreads() {
  constexpr int kThreads = 8;
  return {.threads = kThreads, .waiting = 256, .of_owner = kThreads / 2};
}

// Room for all that may run, and for as many that end.
WorkerPoolOptions CalibrationThreads(int max_calibrations, const ProfileStore* store) {
  return {.threads = store != nullptr ? max_calibrations : 0,
          .waiting = 2 * static_cast<size_t>(max_calibrations)};
}

}  // namespace

CallResources::CallResources(const ServerOptions& options, const ServerContext& server,
                             const Acceptor& acceptor, const Identity& identity)
    : observers(server.call_observers),
      limits(server.limits != nullptr ? *server.limits : no_limits),
      ledger(limits),
      memory(options.memory),
      profiles(MakeCache(options, server.profiles)),
      store_calls(StoreThreads(server.profiles)),
      tokenizer_calls(TokenizerThreads(options, server.engine.limits())),
      format_calls(FormatThreads()),
      calibrations(options.max_calibrations),
      calibration_threads(CalibrationThreads(options.max_calibrations, server.profiles)),
      context{.options = options,
              .engine = server.engine,
              .store = server.profiles,
              .calibrate = server.calibrate,
              .telemetry = server.telemetry,
              .calls = observers,
              .state = state,
              .live_calls = live_calls,
              .memory = memory,
              .writer = writer,
              .profiles = profiles.get(),
              .store_calls = store_calls,
              .tokenizer_calls = tokenizer_calls,
              .format_calls = format_calls,
              .calibrations = calibrations,
              .calibration_threads = calibration_threads,
              .acceptor = acceptor,
              .identity = identity,
              .limits = limits,
              .ledger = ledger,
              .answers_cut_off = answers_cut_off,
              .streams = streams,
              .kv_events = server.kv_events} {}

}  // namespace eta
