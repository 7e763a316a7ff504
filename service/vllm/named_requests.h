// The requests of a listener that run, by tenant and by the name that their client gave them, so
// that they can be aborted by it. Several may have one name. Thread-safe; must outlive the leases
// that it gave out.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "engine/base/lease.h"
#include "engine/base/mutex.h"
#include "engine/base/tenant.h"

namespace eta {

class AbortableRequest {
 public:
  virtual ~AbortableRequest() = default;
  // Ends it soon; may come again, and after its end.
  virtual void Abort() = 0;
};

class NamedRequests {
 public:
  // A request's place among them.
  Lease Add(const Tenant& tenant, const std::string& name, std::weak_ptr<AbortableRequest> request);
  // All of the tenant's that have this name; none may.
  void Abort(const Tenant& tenant, const std::string& name);

 private:
  using Requests = std::multimap<std::pair<Tenant, std::string>, std::weak_ptr<AbortableRequest>>;

  Mutex mutex_;
  Requests requests_ GUARDED_BY(mutex_);
};

}  // namespace eta
