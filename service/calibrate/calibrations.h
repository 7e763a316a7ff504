// Calls of Calibrate: those that work are bounded in number, each request id runs at most once at a
// time, and all end when the server drains. Thread-safe; must outlive the leases that it
// gave out.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/calibrator.h"
#include "engine/base/clock.h"
#include "engine/base/lease.h"
#include "engine/base/mutex.h"
#include "engine/base/tenant.h"

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
  explicit Calibrations(int max_running) : max_running_(max_running) {}

  // For as long as a call runs: its request id, unless that is empty, and that Drain stops it.
  // ABORTED (REQUEST_IN_PROGRESS), UNAVAILABLE (DRAINING).
  absl::StatusOr<Lease> Claim(const Tenant& tenant, const std::string& request_id,
                              const std::stop_source& stop);

  // A place among those that work, and among those of its tenant (0: as many as there are);
  // RESOURCE_EXHAUSTED (CALIBRATION_BUSY, TENANT_CALIBRATIONS).
  absl::StatusOr<Lease> Enter(RunningCalibration calibration, int max_of_tenant);
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
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<int64_t, std::stop_source> calls_ GUARDED_BY(mutex_);
  int64_t last_call_ GUARDED_BY(mutex_) = 0;
  std::set<std::pair<Tenant, std::string>> claimed_ GUARDED_BY(mutex_);
  std::list<RunningCalibration> running_ GUARDED_BY(mutex_);
  bool draining_ GUARDED_BY(mutex_) = false;
  Clock::time_point deadline_ GUARDED_BY(mutex_) = Clock::time_point::max();
};

}  // namespace eta
