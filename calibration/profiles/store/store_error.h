// Errors that every profile store says in the same words.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace eta {

absl::Status NoSuchProfile();  // also for another tenant's
absl::Status ProfileExists();
absl::Status VersionMismatch();
absl::Status RequestIdReused();
absl::Status OverProfileQuota(const std::string& what, int64_t limit);

absl::Status StoreBusy();                               // another writer holds it
absl::Status StoreUnavailable(const std::string& why);  // cannot be reached now
absl::Status StoreFailed();                             // until it is opened anew
absl::Status StoreIoError();
absl::Status StoreFull();
absl::Status StoreCorrupt(const std::string& why);
absl::Status StoreReadOnly();
absl::Status OutcomeUnknown();  // the commit was sent, no answer came

// By reason, as GetErrorDetail tells it.
bool HasReason(const absl::Status& status, const std::string& reason);

}  // namespace eta
