// What one tenant may use of a server.
#pragma once

#include <cstdint>

#include "calibration/profiles/profile_store.h"

namespace eta {

// 0 of a bound: there is none of the tenant's own; 0 of `profiles`: it stores none.
struct TenantLimit {
  int64_t max_calls = 0;  // at a time
  // Token budget: what a call may cost at most is taken when it is let in (of Generate its prompt
  // and max_tokens, of Calibrate its samples), and what it did not use is given back at its end,
  // but for what making tokens of its text costs (token_budget.h).
  double tokens_per_second = 0.0;
  int64_t burst_tokens = 0;  // may be taken at once; set where tokens_per_second is
  double weight = 1.0;       // of its requests against other tenants' while they wait
  int64_t max_kv_tokens = 0;
  int32_t max_calibrations = 0;  // at a time
  ProfileQuota profiles;
};

}  // namespace eta
