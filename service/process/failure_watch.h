// What ends a server that nobody asked to end: found out once a second, and logged as it happens.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "calibration/profiles/profile_store.h"
#include "engine/front/engine.h"
#include "service/log/log.h"

namespace eta {

enum class Failure {
  kStoreFailed,  // could not write what it must: only opening it anew tells what its disk holds
  kOutOfMemory,  // a step had no memory on the host
  kDevicesLost,  // no device is left
  kHung,         // there is work, and the step loop of a device stands still
};

class FailureWatch {
 public:
  // How often in a row the server must be found stalled. A process that was suspended looks stalled
  // when it goes on, until its next step ends.
  static constexpr int kStalledPolls = 5;

  // `devices` by their numbers, in the engine's order; `store` may be null. `stalled` says whether
  // liveness has failed since no step ends; empty: it has not. All must outlive this.
  FailureWatch(const Engine& engine, std::vector<int> devices, const ProfileStore* store, Log& log,
               std::function<bool()> stalled = nullptr);

  // The failure after which the server cannot go on, if there is one. Logs once what the store's
  // trouble is and that it is over, and each device that is lost.
  std::optional<Failure> Poll();

 private:
  bool StoreFailed();
  bool Hung();
  void LogLostDevices(const std::vector<EngineSnapshot>& devices);

  const Engine& engine_;
  const std::vector<int> devices_;
  const ProfileStore* const store_;
  Log& log_;
  const std::function<bool()> stalled_;
  int stalled_polls_ = 0;      // the newest, in a row
  std::string store_trouble_;  // as it was logged
  std::vector<bool> lost_;     // by device: as it was logged
};

}  // namespace eta
