#include "service/process/failure_watch.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"

namespace eta {

FailureWatch::FailureWatch(const Engine& engine, std::vector<int> devices,
                           const ProfileStore* store, Log& log, std::function<bool()> stalled)
    : engine_(engine),
      devices_(std::move(devices)),
      store_(store),
      log_(log),
      stalled_(std::move(stalled)),
      lost_(devices_.size()) {}

std::optional<Failure> FailureWatch::Poll() {
  if (StoreFailed()) return Failure::kStoreFailed;
  const std::vector<EngineSnapshot> devices = engine_.Devices();
  if (std::any_of(devices.begin(), devices.end(),
                  [](const EngineSnapshot& device) { return device.out_of_memory; })) {
    return Failure::kOutOfMemory;
  }
  LogLostDevices(devices);
  if (engine_.Snapshot().device_lost) return Failure::kDevicesLost;
  if (Hung()) return Failure::kHung;
  return std::nullopt;
}

bool FailureWatch::Hung() {
  stalled_polls_ = stalled_ && stalled_() ? stalled_polls_ + 1 : 0;
  return stalled_polls_ >= kStalledPolls;
}

bool FailureWatch::StoreFailed() {
  if (store_ == nullptr) return false;
  const absl::Status health = store_->Health();
  const std::string reason = GetErrorDetail(health).reason;
  if (health.message() != store_trouble_) {
    store_trouble_ = std::string(health.message());
    log_.Write(health.ok()
                   ? LogEvent(LogLevel::kInfo, "store_ok", "profile store: in order again")
                   : LogEvent(LogLevel::kError, "store_trouble", "profile store: " + store_trouble_)
                         .Add("reason", reason));
  }
  return reason == "STORE_FAILED";
}

void FailureWatch::LogLostDevices(const std::vector<EngineSnapshot>& devices) {
  for (size_t i = 0; i < std::min(devices.size(), devices_.size()); ++i) {
    if (!devices[i].device_lost || lost_[i]) continue;
    lost_[i] = true;
    log_.Write(LogEvent(LogLevel::kError, "device_lost",
                        "device " + std::to_string(devices_[i]) + " has failed")
                   .Add("device", devices_[i]));
  }
}

}  // namespace eta
