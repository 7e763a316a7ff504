// The limits of one tenant.
#pragma once

#include <cstdint>

#include "calibration/profiles/profile_store.h"

namespace eta {

// 0 means that the tenant has no limit of its own; for `profiles` it means that the tenant stores
// none.
struct TenantLimit {
  int64_t max_calls = 0;  // at a time
  // The token budget. A call takes the most it may cost when it is let in: Generate its prompt and
  // max_tokens, Calibrate its samples. At its end it gives back what it did not use, except the
  // cost of making tokens of its text (token_budget.h).
  double tokens_per_second = 0.0;
  int64_t burst_tokens = 0;  // the most at once; set if tokens_per_second is
  double weight = 1.0;       // of its requests against other tenants' in the queue
  int64_t max_kv_tokens = 0;
  int32_t max_calibrations = 0;  // at a time
  ProfileQuota profiles;
};

}  // namespace eta
