// How fast the failed calls of a tenant are answered while other tenants are served.
//
// To refuse a call takes some 0.15 ms of processor time, nearly all of it gRPC's, and a tenant that
// asks on whatever it is told takes it from everybody. Above a rate its refusals wait for their
// turn. A connection carries only so many calls at a time, those that wait among them, so the
// client is slowed down to that rate. Thread-safe; must outlive its holds.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "calibration/tenant.h"
#include "engine/request.h"
#include "service/limits/tenant_ledger.h"

namespace eta {

struct RefusalFigures {
  int64_t waiting = 0;
  int64_t delayed = 0;  // that waited, those that still do among them
};

class RefusalPacer {
 public:
  // A second's worth is answered at once, and nothing waits longer than this.
  static constexpr std::chrono::milliseconds kBurst{1000};
  static constexpr std::chrono::milliseconds kLongestWait{5000};
  // Counted for each that waits beside twice its message: about what a call costs.
  static constexpr size_t kCallBytes = size_t{16} << 10;
  static constexpr size_t kMaxTenants = 4096;  // whose turns are known at a time

  struct Options {
    double per_second = 0.0;  // of one tenant; 0: all are answered at once
    // Of those that wait, together; what is more is answered at once.
    size_t max_calls = 0;
    size_t max_bytes = 0;
  };

  // A refusal that waits; at the end of its life it waits no more.
  class Hold {
   public:
    Hold(Hold&& other) noexcept
        : pacer_(std::exchange(other.pacer_, nullptr)), bytes_(other.bytes_), wait_(other.wait_) {}
    Hold& operator=(Hold&&) = delete;
    ~Hold() {
      if (pacer_ != nullptr) pacer_->Remove(bytes_);
    }

    Clock::duration wait() const { return wait_; }

   private:
    friend class RefusalPacer;
    Hold(RefusalPacer& pacer, size_t bytes, Clock::duration wait)
        : pacer_(&pacer), bytes_(bytes), wait_(wait) {}

    RefusalPacer* pacer_;
    size_t bytes_;
    Clock::duration wait_;
  };

  // `now` is for tests.
  RefusalPacer(const TenantLedger& ledger, const Options& options,
               std::function<Clock::time_point()> now = Clock::now);

  // Of a failed call of the tenant, whose message has so many bytes; it waits for `most` at most.
  // Absent: to be answered at once.
  std::optional<Hold> Next(const Tenant& tenant, size_t message_bytes, Clock::duration most);

  RefusalFigures Figures() const;

 private:
  void Remove(size_t bytes);

  const TenantLedger& ledger_;
  const Options options_;
  const std::function<Clock::time_point()> now_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::unordered_map<std::string, Clock::time_point> turns_;  // of each tenant's next, and kBurst
  size_t calls_ = 0;
  size_t bytes_ = 0;
  int64_t delayed_ = 0;
};

}  // namespace eta
