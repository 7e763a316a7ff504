// What requests that attend alike kept of full attention's mass within the last ten minutes, so
// that a request that wishes so (Begin) does not begin with what was just found wanting.
//
// Alike: of one tenant, in one mode, with one version of a profile and the same options. Where
// their mass lies under min_mass (MassEstimate), such a request begins with full attention. One in
// kProbes begins as it asked all the same, and is watched like any other: so an improvement is
// seen. What is older than the window is forgotten, and then all begin as they asked again.
//
// Thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "engine/request/request.h"
#include "engine/request/shadow/mass_estimate.h"

namespace eta {

class LiveMass {
 public:
  static constexpr std::chrono::seconds kSlot{30};
  static constexpr int64_t kSlots = 20;
  static constexpr int64_t kProbes = 16;
  static constexpr size_t kMostKinds = 1024;  // above these, what was not measured for longest goes

  // The row-layers of one request that were measured together.
  void Add(const std::string& tenant, const ResolvedAttention& attention, const MassEstimate& mass,
           Clock::time_point now);
  // Whether a request that comes now, and wishes to begin full where recent mass was low, does;
  // without min_mass it never does.
  bool BeginsFull(const std::string& tenant, const ResolvedAttention& attention,
                  Clock::time_point now);

 private:
  struct Slot {
    int64_t number = -1;  // of slots since the clock's epoch
    MassEstimate mass;
  };
  struct Kind {
    std::array<Slot, kSlots> slots;
    int64_t newest = 0;      // slot that was added to
    int64_t full_begun = 0;  // requests that lacked mass: they began full, or probed
  };

  void MakeRoom() REQUIRES(mutex_);

  Mutex mutex_;
  std::map<std::string, Kind> kinds_ GUARDED_BY(mutex_);
};

}  // namespace eta
