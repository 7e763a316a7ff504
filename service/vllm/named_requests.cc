#include "service/vllm/named_requests.h"

#include <vector>

namespace eta {

Lease NamedRequests::Add(const Tenant& tenant, const std::string& name,
                         std::weak_ptr<AbortableRequest> request) {
  const MutexLock lock(mutex_);
  const Requests::iterator place = requests_.emplace(std::pair(tenant, name), std::move(request));
  return Lease([this, place] {
    const MutexLock release_lock(mutex_);
    requests_.erase(place);
  });
}

void NamedRequests::Abort(const Tenant& tenant, const std::string& name) {
  std::vector<std::shared_ptr<AbortableRequest>> found;
  {
    const MutexLock lock(mutex_);
    const auto [first, last] = requests_.equal_range(std::pair(tenant, name));
    for (auto i = first; i != last; ++i) {
      if (auto request = i->second.lock()) found.push_back(std::move(request));
    }
  }
  // Without the lock, which the end of a request takes.
  for (const auto& request : found) request->Abort();
}

}  // namespace eta
