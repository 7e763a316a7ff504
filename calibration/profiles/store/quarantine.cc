#include "calibration/profiles/store/quarantine.h"

#include "absl/strings/str_cat.h"
#include "calibration/profiles/store/store_error.h"
#include "engine/base/error.h"

namespace eta {
namespace {

// Faults beyond this number are not told apart: such a store has other troubles.
constexpr size_t kMaxHeld = 10'000;

}  // namespace

void Quarantine::Note(const Tenant& tenant, const std::string& name, int64_t version,
                      const absl::Status& read) {
  const bool corrupt = HasReason(read, "PROFILE_CORRUPT");
  const MutexLock lock(mutex_);
  if (corrupt && held_.size() < kMaxHeld) held_.emplace(tenant, name, version);
  if (read.ok() && !held_.empty()) held_.erase({tenant, name, version});
}

void Quarantine::Forget(const Tenant& tenant, const std::string& name) {
  const MutexLock lock(mutex_);
  std::erase_if(held_, [&](const auto& key) {
    return std::get<Tenant>(key) == tenant && std::get<std::string>(key) == name;
  });
}

void Quarantine::Forget(const Tenant& tenant, const std::string& name, int64_t version) {
  const MutexLock lock(mutex_);
  held_.erase({tenant, name, version});
}

bool Quarantine::Holds(const Tenant& tenant, const std::string& name, int64_t version) const {
  const MutexLock lock(mutex_);
  return held_.contains({tenant, name, version});
}

absl::Status Quarantine::Health() const {
  const MutexLock lock(mutex_);
  if (held_.empty()) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kDataLoss,
      absl::StrCat(held_.size(), " stored profiles fail their checks; all others can be used"),
      {.reason = "PROFILE_CORRUPT", .metadata = {{"profiles", absl::StrCat(held_.size())}}});
}

}  // namespace eta
