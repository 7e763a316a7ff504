// Translation of the product's errors into those of the wire: the only place that does it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace eta {

inline constexpr char kErrorDomain[] = "eta";
inline constexpr char kRetryPushbackKey[] = "grpc-retry-pushback-ms";

// What a failed call ends with. The status carries google.rpc details: ErrorInfo always, BadRequest
// for a bad field, RetryInfo when the same call may succeed later, QuotaFailure for bounds on
// work and for quotas, ResourceInfo for unknown names.
struct WireStatus {
  grpc::Status status;
  // Value of the kRetryPushbackKey trailer: milliseconds, or -1 when no repetition of the call can
  // succeed; absent where a client's own retry policy should decide.
  std::optional<std::string> retry_pushback;
};

// The name of an ErrorReason that a client is told, also for a status that was made without one;
// empty for OK.
std::string ReasonOf(const absl::Status& status);

// Messages are cut at 1 KiB. The delay of RetryInfo and pushback is longer than the status says by
// up to 20 %, so that clients refused together do not return together, and none too early: by
// `jitter` of it, [0, 1], which is drawn where it is not given.
WireStatus ToWireStatus(const absl::Status& status, std::optional<double> jitter = std::nullopt);

}  // namespace eta
