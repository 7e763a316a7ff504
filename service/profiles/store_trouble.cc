#include "service/profiles/store_trouble.h"

#include "engine/base/error.h"

namespace eta {

absl::Status StoreIsSlow() {
  return MakeError(absl::StatusCode::kUnavailable, "the profile store does not answer",
                   {.reason = "STORE_UNAVAILABLE", .retry_after = StoreTrouble::kRetry});
}

void StoreTrouble::End(size_t reader, const absl::Status& trouble, Clock::time_point now) {
  reads_[reader].reset();
  failure_ = trouble;
  failed_ = now;
}

absl::Status StoreTrouble::At(Clock::time_point now) const {
  if (!failure_.ok() && now - failed_ <= kBelieved) return failure_;
  for (const auto& began : reads_) {
    if (began && now - *began > patience_) return StoreIsSlow();
  }
  return absl::OkStatus();
}

bool StoreTrouble::ShouldRetry(Clock::time_point now) {
  if (retried_ && now - *retried_ < kRetry) return false;
  retried_ = now;
  return true;
}

}  // namespace eta
