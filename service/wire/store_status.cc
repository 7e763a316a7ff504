#include "service/wire/store_status.h"

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "engine/base/error.h"
#include "engine/front/submission_queue.h"

namespace eta {

absl::Status NoStore() {
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   "this server was started without a profile store (--profile_store)",
                   {.reason = "STORE_NOT_CONFIGURED"});
}

absl::Status StoreCallsFull() {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "too many calls wait for the profile store",
                   {.reason = "QUEUE_FULL", .retry_after = std::chrono::milliseconds(1000)});
}

absl::Status ServerDraining() {
  return ShuttingDown();
}

absl::Status NamingProfile(const absl::Status& status, const std::string& reference,
                           const std::string& field) {
  ErrorDetail detail = GetErrorDetail(status);
  const std::string sentence(status.message());
  const bool missing = detail.reason == "PROFILE_NOT_FOUND";
  if (!missing && detail.reason != "PROFILE_MISMATCH") return status;
  if (!field.empty() && absl::StartsWith(sentence, field)) return status;  // the engine's mismatch
  if (missing) detail.metadata["profile"] = reference;
  return MakeError(status.code(), field.empty() ? sentence : field + ": " + sentence,
                   std::move(detail));
}

}  // namespace eta
