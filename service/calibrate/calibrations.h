// The calibrations of a server: those that work are bounded in number, each request id of a tenant
// runs at most once at a time, and all end when the server drains. Thread-safe; must outlive the
// leases that it gave out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/calibrate/calibrator.h"
#include "calibration/profiles/profile_store.h"
#include "engine/base/clock.h"
#include "engine/base/lease.h"
#include "engine/base/mutex.h"
#include "engine/base/tenant.h"

namespace eta {

class CalibrationCaller;
class CalibrationRun;

// A calibration that works.
struct RunningCalibration {
  Tenant tenant;
  std::string profile;     // that it makes a version of
  std::string request_id;  // of the tenant's that run, this one's alone
  Clock::time_point started;
  std::optional<CalibrationProgress> progress;  // the newest
};

class Calibrations {
 public:
  explicit Calibrations(int max_running) : max_running_(max_running) {}

  struct Joined {
    std::shared_ptr<CalibrationRun> run;
    std::optional<Lease> claim;  // of a new one, which must be started with it
  };
  // The calibration of this request id, or a new one; the caller has joined it. `make` is called
  // with a lock held. ALREADY_EXISTS (REQUEST_ID_REUSED) if the one that runs is of another
  // request; ABORTED (REQUEST_IN_PROGRESS) if it is at its end; UNAVAILABLE (DRAINING).
  absl::StatusOr<Joined> Join(const Tenant& tenant, const PutProfile& put,
                              const std::shared_ptr<CalibrationCaller>& caller,
                              const std::function<std::shared_ptr<CalibrationRun>()>& make);

  // Stops the calibration of this request id; once more is fine. NOT_FOUND (CALIBRATION_NOT_FOUND).
  absl::Status Cancel(const Tenant& tenant, const std::string& request_id);

  // RESOURCE_EXHAUSTED (CALIBRATION_BUSY), with the time after which to try again.
  absl::Status Busy() const;
  // A place among those that work, and among those of its tenant (0: as many as there are). One of
  // the tenant's that nobody waits for is stopped for it, if need be. RESOURCE_EXHAUSTED
  // (CALIBRATION_BUSY, TENANT_CALIBRATIONS).
  absl::StatusOr<Lease> Enter(RunningCalibration calibration, int max_of_tenant);
  // How far one of them is; ignored for a call that holds no place.
  void Report(const Tenant& tenant, const std::string& request_id,
              const CalibrationProgress& progress);
  // Those that work, in the order in which they began; of one tenant if it is given.
  std::vector<RunningCalibration> Running(const std::optional<Tenant>& tenant = std::nullopt) const;

  // Refuses calls from here on and stops those that run. Returns when they have given back what
  // they hold, at `deadline` at the latest; an earlier one may follow from another thread.
  void Drain(Clock::time_point deadline);

 private:
  using Claim = std::pair<Tenant, std::string>;
  struct Place {
    int64_t id;
    RunningCalibration calibration;
  };
  void End(const Claim& claim);
  // Takes the place of one of the tenant's that nobody waits for; null: there is none.
  std::shared_ptr<CalibrationRun> TakeFromOrphan(const Tenant& tenant) REQUIRES(mutex_);

  const int max_running_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<Claim, std::shared_ptr<CalibrationRun>> runs_ GUARDED_BY(mutex_);
  std::vector<Place> places_ GUARDED_BY(mutex_);
  int64_t last_place_ GUARDED_BY(mutex_) = 0;
  bool draining_ GUARDED_BY(mutex_) = false;
  Clock::time_point deadline_ GUARDED_BY(mutex_) = Clock::time_point::max();
};

}  // namespace eta
