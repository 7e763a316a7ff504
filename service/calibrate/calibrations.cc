#include "service/calibrate/calibrations.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "service/wire/store_status.h"

namespace eta {
namespace {

constexpr std::chrono::seconds kRetry{5};  // calibrations take seconds to minutes

}  // namespace

absl::StatusOr<Lease> Calibrations::Claim(const Tenant& tenant, const std::string& request_id,
                                          const std::stop_source& stop) {
  const std::pair claim(tenant, request_id);
  const MutexLock lock(mutex_);
  if (draining_) return ServerDraining();
  if (!request_id.empty() && !claimed_.insert(claim).second) {
    return MakeError(absl::StatusCode::kAborted, "request_id: a call with this id is running",
                     {.reason = "REQUEST_IN_PROGRESS", .retry_after = kRetry});
  }
  const int64_t call = ++last_call_;
  calls_.emplace(call, stop);
  return Lease([this, call, claim] { End(call, claim); });
}

void Calibrations::End(int64_t call, const std::pair<Tenant, std::string>& claim) {
  const MutexLock lock(mutex_);
  calls_.erase(call);
  if (!claim.second.empty()) claimed_.erase(claim);
  if (calls_.empty()) changed_.NotifyAll();
}

absl::StatusOr<Lease> Calibrations::Enter(RunningCalibration calibration, int max_of_tenant) {
  const MutexLock lock(mutex_);
  const auto of_tenant = std::count_if(
      running_.begin(), running_.end(),
      [&](const RunningCalibration& other) { return other.tenant == calibration.tenant; });
  if (max_of_tenant > 0 && of_tenant >= max_of_tenant) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "as many calibrations of the tenant run as may",
        {.reason = "TENANT_CALIBRATIONS",
         .metadata = {{"quota", "max_calibrations"}, {"limit", absl::StrCat(max_of_tenant)}},
         .retry_after = kRetry});
  }
  if (running_.size() >= static_cast<size_t>(max_running_)) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("as many calibrations run as may (", max_running_, ")"),
                     {.reason = "CALIBRATION_BUSY", .retry_after = kRetry});
  }
  const auto place = running_.insert(running_.end(), std::move(calibration));
  return Lease([this, place] {
    const MutexLock release(mutex_);
    running_.erase(place);
  });
}

void Calibrations::Report(const Tenant& tenant, const std::string& request_id,
                          const CalibrationProgress& progress) {
  const MutexLock lock(mutex_);
  for (RunningCalibration& running : running_) {
    if (running.tenant == tenant && running.request_id == request_id) running.progress = progress;
  }
}

std::vector<RunningCalibration> Calibrations::Running(const std::optional<Tenant>& tenant) const {
  std::vector<RunningCalibration> running;
  const MutexLock lock(mutex_);
  for (const RunningCalibration& calibration : running_) {
    if (!tenant || calibration.tenant == *tenant) running.push_back(calibration);
  }
  return running;
}

void Calibrations::Drain(Clock::time_point deadline) {
  std::vector<std::stop_source> running;
  {
    const MutexLock lock(mutex_);
    draining_ = true;
    deadline_ = std::min(deadline_, deadline);
    for (const auto& [call, stop] : calls_) running.push_back(stop);
  }
  changed_.NotifyAll();
  for (std::stop_source& stop : running) stop.request_stop();
  MutexLock lock(mutex_);
  while (!calls_.empty() && Clock::now() < deadline_) {
    const Clock::time_point until = deadline_;
    changed_.WaitUntil(lock, until, [this, until]() REQUIRES(mutex_) {
      return calls_.empty() || deadline_ < until;
    });
  }
}

bool Calibrations::draining() const {
  const MutexLock lock(mutex_);
  return draining_;
}

}  // namespace eta
