// Errors that every profile store reports in the same words.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace eta {

absl::Status NoSuchProfile();  // also for another tenant's
absl::Status ProfileExists();
absl::Status VersionMismatch(int64_t present);  // 0: there is none
absl::Status RequestIdReused();
// A name or alias with versions for other models only; `fingerprint` is of the highest of them.
absl::Status NoFittingVersion(const std::string& fingerprint, const std::string& served);
absl::Status VersionHasAlias(const std::string& alias);
absl::Status OverProfileQuota(const std::string& what, int64_t limit);

absl::Status StoreBusy();                               // another writer holds it
absl::Status StoreUnavailable(const std::string& why);  // it cannot be reached now
absl::Status StoreFailed();                             // until the store is opened anew
absl::Status StoreIoError();
absl::Status StoreFull();
absl::Status StoreCorrupt(const std::string& why);
absl::Status StoreReadOnly();
absl::Status OutcomeUnknown();  // the commit was sent and no answer came

// Compares the reason, as GetErrorDetail reads it.
bool HasReason(const absl::Status& status, const std::string& reason);

}  // namespace eta
