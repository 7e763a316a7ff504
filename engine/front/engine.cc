#include "engine/front/engine.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/front/router.h"
#include "engine/front/step_engine.h"

namespace eta {
namespace {

absl::Status CheckDevices(const EngineOptions& options) {
  const std::vector<int>& devices = options.devices;
  const std::string& backend = options.backend.name;
  if (devices.empty() || devices.size() > PrefixDirectory::kMaxEngines) {
    return InvalidField("device", absl::StrCat("1 to ", PrefixDirectory::kMaxEngines, " devices"));
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i] < 0) return InvalidField("device", "at least 0");
    if (std::count(devices.begin(), devices.end(), devices[i]) > 1) {
      return InvalidField("device", absl::StrCat("each one once, not ", devices[i], " again"));
    }
  }
  if (backend != "cuda" && devices != std::vector{0}) {
    return InvalidField("device", absl::StrCat("only backend cuda has devices, not ", backend));
  }
  if (backend != "cuda" && options.backend.compute != BackendOptions{}.compute) {
    return InvalidField("compute", absl::StrCat("only backend cuda has a choice, not ", backend));
  }
  if (!(options.kv_pool_fraction > 0.0 && options.kv_pool_fraction <= 1.0)) {
    return InvalidField("kv_pool_fraction", "above 0, at most 1");
  }
  return absl::OkStatus();
}

// What one of `count` engines may let wait, rounded up.
template <typename T>
T Share(T limit, size_t count) {
  const auto parts = static_cast<T>(count);
  return limit / parts + (limit % parts != 0 ? 1 : 0);
}

absl::StatusOr<std::unique_ptr<Engine>> OpenDevice(EngineOptions options, int device,
                                                   const Checkpoint& checkpoint, Observer* observer,
                                                   std::shared_ptr<LiveMass> live_mass) {
  // The router compiles formats by its first engine.
  if (device != options.devices.front()) options.format_helper = nullptr;
  options.backend.device = device;
  ASSIGN_OR_RETURN(auto backend, MakeBackend(options.backend));
  return StepEngine::Create(options, checkpoint, std::move(backend), observer,
                            std::move(live_mass));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       Observer* observer) {
  RETURN_IF_ERROR(CheckDevices(options));
  ASSIGN_OR_RETURN(auto checkpoint,
                   Checkpoint::Open(options.model_dir, {.expected_sha256 = options.sha256}));
  const size_t count = options.devices.size();
  const auto live_mass = std::make_shared<LiveMass>();
  if (count == 1) {
    return OpenDevice(options, options.devices[0], checkpoint, observer, live_mass);
  }

  EngineOptions share = options;
  share.limits.max_waiting_requests = Share(options.limits.max_waiting_requests, count);
  share.limits.max_waiting_tokens = Share(options.limits.max_waiting_tokens, count);
  std::vector<absl::StatusOr<std::unique_ptr<Engine>>> opened(count);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      opened[i] = OpenDevice(share, options.devices[i], checkpoint, observer, live_mass);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::unique_ptr<Engine>> engines;
  for (auto& one : opened) {
    ASSIGN_OR_RETURN(auto engine, std::move(one));
    engines.push_back(std::move(engine));
  }
  Limits whole = options.limits;
  whole.max_context = engines.front()->limits().max_context;
  return std::make_unique<Router>(std::move(engines), whole);
}

}  // namespace eta
