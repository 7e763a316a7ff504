#include "service/calibrate/calibrations.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "calibration/profiles/store/store_error.h"
#include "engine/base/error.h"
#include "service/calibrate/calibration_run.h"
#include "service/wire/store_status.h"

namespace eta {
namespace {

constexpr std::chrono::seconds kRetry{5};  // calibrations take seconds to minutes
constexpr std::chrono::milliseconds kRetryEnding{200};

}  // namespace

absl::StatusOr<Calibrations::Joined> Calibrations::Join(
    const Tenant& tenant, const PutProfile& put, const std::shared_ptr<CalibrationCaller>& caller,
    const std::function<std::shared_ptr<CalibrationRun>()>& make) {
  const Claim claim(tenant, put.request_id);
  std::shared_ptr<CalibrationRun> run;
  {
    const MutexLock lock(mutex_);
    if (draining_) return ServerDraining();
    const auto found = runs_.find(claim);
    if (found == runs_.end()) {
      run = make();
      run->Join(caller);
      runs_.emplace(claim, run);
      return Joined{.run = std::move(run), .claim = Lease([this, claim] { End(claim); })};
    }
    run = found->second;
  }
  if (run->payload_digest() != put.payload_digest) return RequestIdReused();
  if (run->Join(caller)) return Joined{.run = std::move(run), .claim = std::nullopt};
  return MakeError(absl::StatusCode::kAborted, "request_id: a call with this id is ending",
                   {.reason = "REQUEST_IN_PROGRESS", .retry_after = kRetryEnding});
}

absl::Status Calibrations::Cancel(const Tenant& tenant, const std::string& request_id) {
  std::shared_ptr<CalibrationRun> run;
  {
    const MutexLock lock(mutex_);
    const auto found = runs_.find(Claim(tenant, request_id));
    if (found != runs_.end()) run = found->second;
  }
  if (run == nullptr) {
    return MakeError(absl::StatusCode::kNotFound,
                     "request_id: no calibration with this id runs on this server",
                     {.reason = "CALIBRATION_NOT_FOUND"});
  }
  run->RequestStop(CalibrationRun::Stop::kCancelled);
  return absl::OkStatus();
}

void Calibrations::End(const Claim& claim) {
  const MutexLock lock(mutex_);
  runs_.erase(claim);
  if (runs_.empty()) changed_.NotifyAll();
}

absl::Status Calibrations::Busy() const {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("as many calibrations run as may (", max_running_, ")"),
                   {.reason = "CALIBRATION_BUSY", .retry_after = kRetry});
}

absl::StatusOr<Lease> Calibrations::Enter(RunningCalibration calibration, int max_of_tenant) {
  std::shared_ptr<CalibrationRun> orphan;
  int64_t id = 0;
  {
    const MutexLock lock(mutex_);
    const auto of_tenant = std::count_if(places_.begin(), places_.end(), [&](const Place& place) {
      return place.calibration.tenant == calibration.tenant;
    });
    const bool tenant_full = max_of_tenant > 0 && of_tenant >= max_of_tenant;
    const bool full = places_.size() >= static_cast<size_t>(max_running_);
    if (tenant_full || full) orphan = TakeFromOrphan(calibration.tenant);
    if (tenant_full && orphan == nullptr) {
      return MakeError(
          absl::StatusCode::kResourceExhausted, "as many calibrations of the tenant run as may",
          {.reason = "TENANT_CALIBRATIONS",
           .metadata = {{"quota", "max_calibrations"}, {"limit", absl::StrCat(max_of_tenant)}},
           .retry_after = kRetry});
    }
    if (full && orphan == nullptr) return Busy();
    id = ++last_place_;
    places_.push_back({.id = id, .calibration = std::move(calibration)});
  }
  if (orphan != nullptr) orphan->RequestStop(CalibrationRun::Stop::kOrphaned);
  return Lease([this, id] {
    const MutexLock release(mutex_);
    std::erase_if(places_, [id](const Place& place) { return place.id == id; });
  });
}

std::shared_ptr<CalibrationRun> Calibrations::TakeFromOrphan(const Tenant& tenant) {
  for (auto place = places_.begin(); place != places_.end(); ++place) {
    if (place->calibration.tenant != tenant) continue;
    const auto run = runs_.find(Claim(tenant, place->calibration.request_id));
    if (run == runs_.end() || !run->second->GiveWay()) continue;
    places_.erase(place);
    return run->second;
  }
  return nullptr;
}

void Calibrations::Report(const Tenant& tenant, const std::string& request_id,
                          const CalibrationProgress& progress) {
  const MutexLock lock(mutex_);
  for (Place& place : places_) {
    RunningCalibration& running = place.calibration;
    if (running.tenant == tenant && running.request_id == request_id) running.progress = progress;
  }
}

std::vector<RunningCalibration> Calibrations::Running(const std::optional<Tenant>& tenant) const {
  std::vector<RunningCalibration> running;
  const MutexLock lock(mutex_);
  for (const Place& place : places_) {
    if (!tenant || place.calibration.tenant == *tenant) running.push_back(place.calibration);
  }
  return running;
}

void Calibrations::Drain(Clock::time_point deadline) {
  std::vector<std::shared_ptr<CalibrationRun>> running;
  {
    const MutexLock lock(mutex_);
    draining_ = true;
    deadline_ = std::min(deadline_, deadline);
    for (const auto& [claim, run] : runs_) running.push_back(run);
  }
  changed_.NotifyAll();
  for (const auto& run : running) run->RequestStop(CalibrationRun::Stop::kDrain);
  running.clear();
  MutexLock lock(mutex_);
  while (!runs_.empty() && Clock::now() < deadline_) {
    const Clock::time_point until = deadline_;
    changed_.WaitUntil(lock, until, [this, until]() REQUIRES(mutex_) {
      return runs_.empty() || deadline_ < until;
    });
  }
}

}  // namespace eta
