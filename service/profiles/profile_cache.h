// The profiles of requests, in memory: verified records of the store, kept current by its watch.
//
// A profile that is known answers at once and never waits for the store; one that is not is loaded
// on a thread of the cache. What changed is loaded again in the background, and so is everything
// once in a while, since only a fresh read proves that the store still says so. While the store
// cannot be read, its answers stay in use until they were last verified `staleness` ago: profiles,
// and that there is no such profile.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/profiles/profile_store.h"
#include "engine/base/lease.h"
#include "engine/base/mutex.h"
#include "engine/base/threads/fair_queue.h"
#include "engine/base/threads/loop_thread.h"
#include "engine/request/request.h"
#include "engine/request/threshold_profile.h"
#include "service/profiles/store_trouble.h"

namespace eta {

struct ProfileCacheOptions {
  std::chrono::milliseconds staleness{3'600'000};
  size_t max_bytes = size_t{256} << 20;  // of profiles; the least recently used ones go first
  size_t max_missing = 4096;             // references that are known to name nothing
  size_t max_waiting = 1024;             // requests that wait for the store, of all tenants
  // The longest wait of a request that can go on without its profile.
  std::chrono::milliseconds patience{2000};
};

// A version that is in memory: known to the cache, or in use by a request.
struct LoadedProfile {
  Tenant tenant;
  std::string name;
  int64_t version = 0;
  std::string checksum;
  // Measured on held-out text when it was calibrated; absent: it was not verified.
  std::optional<double> head_density;
  std::optional<double> union_density;
  std::optional<double> retained_mass;  // absent also where it was not measured
  int64_t measured_context = 0;         // of the densities (profile_record.h)
};

struct ProfileCacheStatus {
  int64_t bytes = 0;
  // Reads from the store since the cache was made; an answer that nothing is there counts as read.
  int64_t reads = 0;
  int64_t failed_reads = 0;
  std::optional<Clock::time_point> last_read;  // the newest that did not fail
  std::optional<Clock::time_point> oldest;     // of profiles: when the store last confirmed it
};

// Whether a version that was just stored is the newest one for the model of this fingerprint.
inline bool IsNewestAtOnce(const ProfileRecord& record, const std::string& model_fingerprint) {
  return !record.staged && record.content.model_fingerprint == model_fingerprint;
}

class ProfileCache {
 public:
  using Answer = absl::StatusOr<std::shared_ptr<const ThresholdProfile>>;

  // The store must outlive the cache.
  explicit ProfileCache(ProfileStore& store, const ProfileCacheOptions& options = {});
  ~ProfileCache();
  ProfileCache(const ProfileCache&) = delete;
  ProfileCache& operator=(const ProfileCache&) = delete;

  // What a tenant's reference means now, an immutable snapshot. `done` runs once: before this
  // returns if the answer is known, else later on a thread of the cache. Errors: those of
  // ProfileStore::Get, after the same work for what is nobody's and what is another tenant's;
  // RESOURCE_EXHAUSTED (QUEUE_FULL) where the tenant has no room to wait (fair_queue.h): what is
  // loaded for requests is, in turn by tenant. From any thread, does not block.
  void Resolve(const Tenant& tenant, const ProfileReference& reference,
               std::function<void(Answer)> done);

  // As Resolve, for a request that goes on without the profile: waits no longer than `patience`,
  // and not at all while the store is known to be in trouble (UNAVAILABLE, or the store's error).
  void ResolveDefault(const Tenant& tenant, const ProfileReference& reference,
                      std::function<void(Answer)> done);

  // A version that this server has stored, for which IsNewestAtOnce: in use from here on.
  void Add(const ProfileRecord& record);
  // This server has deleted the profile or versions of it, has promoted one or has changed its
  // aliases: nothing older is used from here on.
  void Forget(const Tenant& tenant, const std::string& name);

  // What is in memory, by tenant, name and version; of one tenant if it is given.
  std::vector<LoadedProfile> Loaded(const std::optional<Tenant>& tenant = std::nullopt) const;
  ProfileCacheStatus Status() const;
  // The tenants for which the reference is in memory.
  int64_t TenantsWith(const ProfileReference& reference) const;
  // Requests that wait for the store, and as many as may.
  size_t waiting() const;
  size_t max_waiting() const { return options_.max_waiting; }

  // Whoever waits for the store, now or later, is answered with UNAVAILABLE (DRAINING).
  void Close();

 private:
  struct Entry;
  struct Known {
    std::weak_ptr<const ThresholdProfile> profile;
    LoadedProfile loaded;
  };
  using EntryPtr = std::shared_ptr<Entry>;
  using Done = std::function<void(Answer)>;  // as given to Resolve
  struct Waiter {
    Done done;
    Clock::time_point until;  // max(): for as long as it takes
  };

  // What one load from the store said.
  struct Loading {
    EntryPtr entry;
    uint64_t changes = 0;  // of the entry when it was asked for
    Clock::time_point asked;
    absl::StatusOr<ProfilePtr> record;
  };

  void Resolve(const Tenant& tenant, const ProfileReference& reference, bool is_default, Done done);
  // Adds a waiter, or says why there is no room for it; then `done` is left as it is.
  absl::Status Await(const Tenant& tenant, const ProfileReference& reference, bool is_default,
                     Done& done) REQUIRES(mutex_);
  // One step of a thread: answers who has waited long enough; when the next is due.
  Clock::time_point EndPatience();
  void OnChange(const ProfileChange& change);
  // One step of a thread: loads what is next; when the next step is due. Of the two threads one
  // answers requests only, so that none waits behind what is merely old; the other loads what is
  // old first, so that a flood of requests does not keep that from being renewed.
  Clock::time_point LoadNext(bool refreshes);
  // Whoever waited for it, with what it is answered; nobody if it has to be loaded again.
  std::vector<Waiter> Keep(const Loading& loading, Answer& answer) REQUIRES(mutex_);

  EntryPtr FindOrAdd(const Tenant& tenant, const ProfileReference& reference) REQUIRES(mutex_);
  std::vector<EntryPtr> EntriesOf(const Tenant& tenant, const std::string& name) const
      REQUIRES(mutex_);
  bool Usable(const Entry& entry, Clock::time_point now) const;
  // Whether its answer stays good while the store cannot be read.
  bool Lasts(const Entry& entry, Clock::time_point now) const;
  void Demand(const EntryPtr& entry) REQUIRES(mutex_);
  void Refresh(const EntryPtr& entry) REQUIRES(mutex_);
  void RefreshWhatIsOld(Clock::time_point now) REQUIRES(mutex_);
  void RefreshNothing() REQUIRES(mutex_);
  // Null: there is nothing for this thread.
  EntryPtr PopNext(bool refreshes) REQUIRES(mutex_);
  std::vector<Waiter> DrainWaiting(Entry& entry) REQUIRES(mutex_);
  // So many of the tenant's wait no more.
  void CountDrained(const Tenant& tenant, size_t drained) REQUIRES(mutex_);
  size_t WaitingOf(const Tenant& tenant) const REQUIRES(mutex_);
  std::shared_ptr<const ThresholdProfile> Shared(const ProfileRecord& record) REQUIRES(mutex_);
  void SetAnswer(Entry& entry, Answer answer, Clock::time_point verified) REQUIRES(mutex_);
  void DropAnswer(Entry& entry) REQUIRES(mutex_);
  void Erase(Entry& entry) REQUIRES(mutex_);
  void Evict() REQUIRES(mutex_);

  ProfileStore& store_;
  const ProfileCacheOptions options_;
  const std::chrono::milliseconds refresh_period_;

  mutable Mutex mutex_;
  // By tenant, name and selector.
  std::map<std::string, EntryPtr> entries_ GUARDED_BY(mutex_);
  std::list<Entry*> found_ GUARDED_BY(mutex_);  // most recently used first
  std::list<Entry*> missing_ GUARDED_BY(mutex_);
  // By checksum: references to one version share it, also when it is loaded again.
  std::unordered_map<std::string, Known> profiles_ GUARDED_BY(mutex_);
  FairQueue<EntryPtr> demanded_ GUARDED_BY(mutex_);  // by tenant
  std::deque<EntryPtr> to_refresh_ GUARDED_BY(mutex_);
  // Entries with a waiter that goes on without the profile at the time beside it; earliest first.
  std::deque<std::pair<Clock::time_point, EntryPtr>> impatient_ GUARDED_BY(mutex_);
  StoreTrouble trouble_ GUARDED_BY(mutex_);
  Clock::time_point next_refresh_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  ProfileCacheStatus reads_ GUARDED_BY(mutex_);  // but for the bytes and the oldest
  size_t waiting_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, size_t> waiting_of_ GUARDED_BY(mutex_);  // the same by tenant
  bool closed_ GUARDED_BY(mutex_) = false;

  // Last: they use the others, the watch also the threads.
  LoopThread answering_, refreshing_, patience_;
  Lease watch_;
};

}  // namespace eta
