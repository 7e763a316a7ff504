// What the server as a whole is doing. A server that loads its model does not listen yet, so that
// is no state of it. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/front/engine.h"

namespace eta {

// Of several that are true, the last one.
enum class ServerState : uint8_t { kServing, kDraining, kStalled, kDeviceLost };

class ServerStateFlags {
 public:
  // It was told to stop: not ready any more, new calls are still taken.
  void SetDraining() { draining_ = true; }
  // It takes no new calls from here on.
  void SetClosed() { closed_ = true; }
  // It takes calls and does not end.
  void SetReady(bool ready) { ready_ = ready; }
  // Whether requests run but no step has ended for stall_timeout on a device that works.
  void SetStalled(bool stalled) { stalled_ = stalled; }

  bool ready() const { return ready_; }
  bool closed() const { return closed_; }
  bool stalled() const { return stalled_; }
  ServerState Of(const EngineSnapshot& engine) const {
    if (engine.device_lost) return ServerState::kDeviceLost;
    if (stalled_) return ServerState::kStalled;
    return draining_ || closed_ ? ServerState::kDraining : ServerState::kServing;
  }

 private:
  std::atomic<bool> ready_ = false;
  std::atomic<bool> draining_ = false;
  std::atomic<bool> closed_ = false;
  std::atomic<bool> stalled_ = false;
};

}  // namespace eta
