// Calls of Calibrate: those that work are bounded in number, each request id runs at most once at a
// time, and all end when the server drains. Thread-safe; must outlive what it gave out.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/calibrator.h"
#include "engine/base/tenant.h"
#include "engine/request/request.h"

namespace eta {

// A calibration that works.
struct RunningCalibration {
  Tenant tenant;
  std::string profile;     // that it makes a version of
  std::string request_id;  // of the tenant's calls that run, this one's alone
  Clock::time_point started;
  std::optional<CalibrationProgress> progress;  // the newest
};

class Calibrations {
 public:
  // Something taken, given back when it is destroyed.
  class Hold {
   public:
    Hold() = default;
    explicit Hold(std::function<void()> give_back) : give_back_(std::move(give_back)) {}
    Hold(Hold&& other) noexcept : give_back_(std::exchange(other.give_back_, nullptr)) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(give_back_, other.give_back_);
      return *this;
    }
    ~Hold() { GiveBack(); }

    void GiveBack() {
      if (const auto give_back = std::exchange(give_back_, nullptr)) give_back();
    }

   private:
    std::function<void()> give_back_;
  };

  explicit Calibrations(int max_running) : max_running_(max_running) {}

  // For as long as a call runs: its request id, unless that is empty, and that Drain stops it.
  // ABORTED (REQUEST_IN_PROGRESS), UNAVAILABLE (DRAINING).
  absl::StatusOr<Hold> Claim(const Tenant& tenant, const std::string& request_id,
                             const std::stop_source& stop);

  // A place among those that work, and among those of its tenant (0: as many as there are);
  // RESOURCE_EXHAUSTED (CALIBRATION_BUSY, TENANT_CALIBRATIONS).
  absl::StatusOr<Hold> Enter(RunningCalibration calibration, int max_of_tenant);
  // How far one of them is; ignored for a call that holds no place.
  void Report(const Tenant& tenant, const std::string& request_id,
              const CalibrationProgress& progress);
  // Those that work, in the order in which they began; of one tenant if it is given.
  std::vector<RunningCalibration> Running(const std::optional<Tenant>& tenant = std::nullopt) const;

  // Refuses calls from here on and stops those that run. Returns when they have given back what
  // they hold, at `deadline` at the latest; an earlier one may follow from another thread.
  void Drain(Clock::time_point deadline);
  bool draining() const;

 private:
  void End(int64_t call, const std::pair<Tenant, std::string>& claim);

  const int max_running_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::map<int64_t, std::stop_source> calls_;
  int64_t last_call_ = 0;
  std::set<std::pair<Tenant, std::string>> claimed_;
  std::list<RunningCalibration> running_;
  bool draining_ = false;
  Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace eta
