#include "calibration/profiles/store/store_error.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta {
namespace {

using absl::StatusCode;
constexpr std::chrono::milliseconds kSoon{1000};

}  // namespace

absl::Status NoSuchProfile() {
  return MakeError(StatusCode::kNotFound, "there is no such profile",
                   {.reason = "PROFILE_NOT_FOUND"});
}

absl::Status ProfileExists() {
  return MakeError(StatusCode::kAlreadyExists, "there is a profile of this name",
                   {.reason = "PROFILE_EXISTS", .field = "name"});
}

absl::Status VersionMismatch(int64_t present) {
  return MakeError(StatusCode::kAborted,
                   absl::StrCat("the profile is at version ", present, ", not the expected one"),
                   {.reason = "VERSION_MISMATCH",
                    .field = "expected_version",
                    .metadata = {{"present_version", absl::StrCat(present)}}});
}

absl::Status RequestIdReused() {
  return MakeError(StatusCode::kAlreadyExists, "this request id was used for another request",
                   {.reason = "REQUEST_ID_REUSED", .field = "request_id"});
}

absl::Status NoFittingVersion(const std::string& fingerprint, const std::string& served) {
  return MakeError(
      StatusCode::kFailedPrecondition, "the profile has no version for the served model",
      {.reason = "PROFILE_MISMATCH",
       .metadata = {
           {"mismatch", "model_fingerprint"}, {"profile", fingerprint}, {"served", served}}});
}

absl::Status VersionHasAlias(const std::string& alias) {
  return MakeError(StatusCode::kFailedPrecondition,
                   absl::StrCat("an alias names this version (", alias, "): move it away first"),
                   {.reason = "VERSION_HAS_ALIAS", .metadata = {{"alias", alias}}});
}

absl::Status OverProfileQuota(const std::string& what, int64_t limit) {
  return MakeError(
      StatusCode::kResourceExhausted,
      absl::StrCat("the tenant's quota of ", limit, " ", what, " is used up"),
      {.reason = "PROFILE_QUOTA", .metadata = {{"limit", absl::StrCat(limit)}, {"subject", what}}});
}

absl::Status StoreBusy() {
  return MakeError(StatusCode::kUnavailable, "the profile store is busy",
                   {.reason = "STORE_BUSY", .retry_after = kSoon});
}

absl::Status StoreUnavailable(const std::string& why) {
  return MakeError(StatusCode::kUnavailable, "the profile store cannot be reached: " + why,
                   {.reason = "STORE_UNAVAILABLE", .retry_after = kSoon});
}

absl::Status StoreFailed() {
  return MakeError(StatusCode::kUnavailable,
                   "the profile store failed to write and must be opened anew",
                   {.reason = "STORE_FAILED", .retry_after = kSoon});
}

absl::Status StoreIoError() {
  return MakeError(StatusCode::kInternal,
                   "the profile store could not read or write its file; nothing is acknowledged",
                   {.reason = "STORE_IO_ERROR"});
}

absl::Status StoreFull() {
  return MakeError(StatusCode::kResourceExhausted, "the profile store's disk is full",
                   {.reason = "STORE_FULL"});
}

absl::Status StoreCorrupt(const std::string& why) {
  return MakeError(StatusCode::kDataLoss, "the profile store " + why, {.reason = "STORE_CORRUPT"});
}

absl::Status StoreReadOnly() {
  return MakeError(StatusCode::kFailedPrecondition,
                   "the profile store is a folder of files (dir:) and is read only",
                   {.reason = "STORE_READ_ONLY"});
}

absl::Status OutcomeUnknown() {
  return MakeError(StatusCode::kUnavailable,
                   "the profile store was lost during the commit: repeat with the same request id",
                   {.reason = "OUTCOME_UNKNOWN", .retry_after = kSoon});
}

bool HasReason(const absl::Status& status, const std::string& reason) {
  return GetErrorDetail(status).reason == reason;
}

}  // namespace eta
