// Stored profiles that failed their checks when they were last read: told, never served. Kept in
// memory alone, since a store that wrote while it reads would do so on a disk that may be failing;
// after a restart the first read of such a profile finds out again.
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
  // What reading a profile said; only PROFILE_CORRUPT puts it in, only OK takes it out.
  void Note(const Tenant& tenant, const std::string& name, int64_t version,
            const absl::Status& read);
  // All versions of a name are gone.
  void Forget(const Tenant& tenant, const std::string& name);

  bool Holds(const Tenant& tenant, const std::string& name, int64_t version) const;
  // OK, or DATA_LOSS (PROFILE_CORRUPT) with their number.
  absl::Status Health() const;

 private:
  mutable Mutex mutex_;
  std::set<std::tuple<Tenant, std::string, int64_t>> held_ GUARDED_BY(mutex_);
};

}  // namespace eta
