// Stored profiles that failed their checks at the last read: reported, never served. The list is
// kept in memory only, since a store that writes while it reads would write to a disk that may be
// failing. After a restart the first read of such a profile finds the fault again.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "engine/base/tenant.h"

namespace eta {

// Thread-safe.
class Quarantine {
 public:
  // Notes the result of reading a profile. Only PROFILE_CORRUPT adds the profile, only OK removes
  // it.
  void Note(const Tenant& tenant, const std::string& name, int64_t version,
            const absl::Status& read);
  // Removes all versions of a name, since they are gone.
  void Forget(const Tenant& tenant, const std::string& name);
  // Removes one version, since it is gone.
  void Forget(const Tenant& tenant, const std::string& name, int64_t version);

  bool Holds(const Tenant& tenant, const std::string& name, int64_t version) const;
  // OK, or DATA_LOSS (PROFILE_CORRUPT) with the number of profiles.
  absl::Status Health() const;

 private:
  mutable Mutex mutex_;
  std::set<std::tuple<Tenant, std::string, int64_t>> held_ GUARDED_BY(mutex_);
};

}  // namespace eta
