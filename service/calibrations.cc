#include "service/calibrations.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "engine/error.h"

namespace eta {
namespace {

constexpr std::chrono::seconds kRetry{5};  // calibrations take seconds to minutes

}  // namespace

absl::StatusOr<Calibrations::Hold> Calibrations::Claim(const Tenant& tenant,
                                                       const std::string& request_id) {
  if (request_id.empty()) return Hold();
  const std::pair claim(tenant, request_id);
  const std::lock_guard lock(mutex_);
  if (!claimed_.insert(claim).second) {
    return MakeError(absl::StatusCode::kAborted, "request_id: a call with this id is running",
                     {.reason = "REQUEST_IN_PROGRESS", .retry_after = kRetry});
  }
  return Hold([this, claim] {
    const std::lock_guard release(mutex_);
    claimed_.erase(claim);
  });
}

absl::StatusOr<Calibrations::Hold> Calibrations::Enter() {
  const std::lock_guard lock(mutex_);
  if (running_ >= max_running_) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("as many calibrations run as may (", max_running_, ")"),
                     {.reason = "CALIBRATION_BUSY", .retry_after = kRetry});
  }
  ++running_;
  return Hold([this] {
    const std::lock_guard release(mutex_);
    --running_;
  });
}

}  // namespace eta
