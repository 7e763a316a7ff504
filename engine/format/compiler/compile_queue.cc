#include "engine/format/compiler/compile_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta {

absl::StatusOr<Lease> CompileQueue::Enter(const std::string& tenant, const std::string& key,
                                          Clock::time_point deadline) {
  MutexLock lock(mutex_);
  const auto waiting = std::count_if(places_.begin(), places_.end(), [&](const Place& place) {
    return !place.running && place.tenant == tenant;
  });
  if (waiting >= kMaxWaiting) {
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("format: ", kMaxWaiting, " formats of this tenant wait to be compiled"),
        {.reason = "QUEUE_FULL", .field = "format"});
  }
  const auto place = places_.insert(places_.end(), {.tenant = tenant, .key = key});
  Admit();
  if (!changed_.WaitUntil(lock, deadline, [&] { return place->running; })) {
    places_.erase(place);
    return DeadlinePassed(/*started=*/false);
  }
  return Lease([this, place] { Leave(place); });
}

bool CompileQueue::MayRun(const Place& place) const {
  int all = 0;
  int own = 0;
  for (const Place& other : places_) {
    if (!other.running) continue;
    if (other.tenant == place.tenant && other.key == place.key) return false;
    ++all;
    own += other.tenant == place.tenant ? 1 : 0;
  }
  return all < running_ && own < std::max(1, running_ - 1);
}

void CompileQueue::Admit() {
  for (Place& place : places_) {
    if (!place.running) place.running = MayRun(place);
  }
  changed_.NotifyAll();
}

void CompileQueue::Leave(std::list<Place>::iterator place) {
  const MutexLock lock(mutex_);
  places_.erase(place);
  Admit();
}

}  // namespace eta
