#include "service/calibrate/patient_put.h"

#include <algorithm>
#include <functional>
#include <string>

#include "engine/base/error.h"
#include "engine/base/mutex.h"

namespace eta {
namespace {

// Sleeps, but not past the stop. False: it has come.
class Sleeper {
 public:
  explicit Sleeper(const std::stop_token& stop) : stop_(stop), on_stop_(stop, [this] { Wake(); }) {}

  bool Sleep(std::chrono::milliseconds duration) {
    MutexLock lock(mutex_);
    wake_.WaitFor(lock, duration, [this] { return stop_.stop_requested(); });
    return !stop_.stop_requested();
  }

 private:
  void Wake() {
    const MutexLock lock(mutex_);
    wake_.NotifyAll();
  }

  const std::stop_token stop_;
  Mutex mutex_;
  CondVar wake_;
  const std::stop_callback<std::function<void()>> on_stop_;  // last: it uses the others
};

}  // namespace

// A store that failed takes no writes until it is opened anew, and one that is full until somebody
// makes room.
bool IsBlip(const absl::Status& status) {
  const std::string reason = GetErrorDetail(status).reason;
  return reason == "STORE_UNAVAILABLE" || reason == "STORE_BUSY" || reason == "STORE_CONFLICT" ||
         reason == "OUTCOME_UNKNOWN";
}

absl::StatusOr<ProfilePtr> PutPatiently(ProfileStore& store, const Tenant& tenant,
                                        const PutProfile& put, const std::stop_token& stop,
                                        const PutPatience& patience) {
  Sleeper sleeper(stop);
  absl::Status unknown;
  for (auto wait = patience.first_wait;; wait = std::min(2 * wait, patience.longest_wait)) {
    absl::StatusOr<ProfilePtr> stored = store.Put(tenant, put);
    if (stored.ok() || !IsBlip(stored.status())) return stored;
    if (GetErrorDetail(stored.status()).reason == "OUTCOME_UNKNOWN") unknown = stored.status();
    if (!sleeper.Sleep(wait)) return unknown.ok() ? stored : unknown;
  }
}

}  // namespace eta
