// The limits of each tenant: the table in effect, which a reload of its file replaces as a whole.
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/base/tenant.h"
#include "engine/base/threads/watched_files.h"
#include "service/limits/limits_file.h"

namespace eta {

class TenantLimits {
 public:
  // No tenant has bounds of its own but those of TenantLimit.
  TenantLimits();
  // As `path` says, now and whenever the file changes; contents that are refused leave in effect
  // what holds. `report` hears of every change but the first load. INVALID_ARGUMENT, naming
  // --tenants, for a file that cannot be used.
  static absl::StatusOr<std::unique_ptr<TenantLimits>> Open(const std::string& path,
                                                            WatchedFiles::Report report);

  TenantLimit Of(const Tenant& tenant) const;
  // Whether the file has an entry for the tenant; and all tenants that have one, by name.
  bool Names(const Tenant& tenant) const;
  std::vector<std::string> Named() const;

  // Puts the contents of a file into effect, or says why not.
  absl::Status Apply(const std::string& text);
  // Polls the file now; nothing without one.
  void Poll();
  // Null without a file.
  const WatchedFiles* file() const { return file_.get(); }

 private:
  std::shared_ptr<const LimitTable> table() const;

  mutable Mutex mutex_;
  std::shared_ptr<const LimitTable> table_ GUARDED_BY(mutex_);
  std::unique_ptr<WatchedFiles> file_;  // last: it calls Apply
};

}  // namespace eta
