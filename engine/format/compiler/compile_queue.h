// Who compiles a format now, and who waits: so many at a time, of one tenant one less, so that
// nobody keeps all others out; equal formats one after the other, so that the second finds what the
// first has made.
#pragma once

#include <cstdint>
#include <list>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/lease.h"
#include "engine/base/mutex.h"

namespace eta {

// Thread-safe. Outlives its leases.
class CompileQueue {
 public:
  static constexpr int kMaxWaiting = 16;  // of one tenant

  // `running`, at least 1, at a time.
  explicit CompileQueue(int running) : running_(running) {}

  // Waits for a place; those who wait get theirs in the order of coming. The lease gives it back.
  // RESOURCE_EXHAUSTED (QUEUE_FULL): too many of the tenant wait; DEADLINE_EXCEEDED
  // (DEADLINE_QUEUED).
  absl::StatusOr<Lease> Enter(const std::string& tenant, const std::string& key,
                              Clock::time_point deadline) EXCLUDES(mutex_);

 private:
  struct Place {
    std::string tenant;
    std::string key;
    bool running = false;
  };

  // Gives what is free to the first who may have it.
  void Admit() REQUIRES(mutex_);
  bool MayRun(const Place& place) const REQUIRES(mutex_);
  void Leave(std::list<Place>::iterator place) EXCLUDES(mutex_);

  const int running_;
  Mutex mutex_;
  CondVar changed_;
  std::list<Place> places_ GUARDED_BY(mutex_);  // in the order of coming
};

}  // namespace eta
