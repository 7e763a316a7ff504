// What ends a server that nobody asked to end: found out once a second, and logged as it happens.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibration/profiles/profile_store.h"
#include "engine/engine.h"
#include "service/log/log.h"

namespace eta {

enum class Failure {
  kStoreFailed,  // could not write what it must: only opening it anew tells what its disk holds
  kOutOfMemory,  // a step had no memory on the host
  kDevicesLost,  // no device is left
};

class FailureWatch {
 public:
  // `devices` by their numbers, in the engine's order; `store` may be null. All must outlive this.
  FailureWatch(const Engine& engine, std::vector<int> devices, const ProfileStore* store, Log& log);

  // The failure after which the server cannot go on, if there is one. Logs once what the store's
  // trouble is and that it is over, and each device that is lost.
  std::optional<Failure> Poll();

 private:
  bool StoreFailed();
  void LogLostDevices(const std::vector<EngineSnapshot>& devices);

  const Engine& engine_;
  const std::vector<int> devices_;
  const ProfileStore* const store_;
  Log& log_;
  std::string store_trouble_;  // as it was logged
  std::vector<bool> lost_;     // by device: as it was logged
};

}  // namespace eta
