// Translates the product's errors into those of the wire. No other place does.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace eta {

inline constexpr char kErrorDomain[] = "eta-server.internal";
inline constexpr char kRetryPushbackKey[] = "grpc-retry-pushback-ms";

// The end of a failed call. The status carries google.rpc details: always ErrorInfo; BadRequest for
// a bad field; RetryInfo if the same call may succeed later; QuotaFailure for bounds on work and
// for quotas; ResourceInfo for unknown names.
struct WireStatus {
  grpc::Status status;
  // The value of the kRetryPushbackKey trailer: milliseconds, or -1 if no repetition of the call
  // can succeed. Absent if the client's own retry policy should decide.
  std::optional<std::string> retry_pushback;
};

// The ErrorReason that a client gets, as ErrorInfo spells it, also for a status without a reason.
// Empty for OK.
std::string ReasonOf(const absl::Status& status);

// Cuts messages at 1 KiB. The delay of RetryInfo and of the pushback is up to 20 % longer than the
// status says, so that clients that were refused together do not return together, and none returns
// too early. `jitter` in [0, 1] is the share of these 20 %; it is drawn if it is not given.
WireStatus ToWireStatus(const absl::Status& status, std::optional<double> jitter = std::nullopt);

}  // namespace eta
