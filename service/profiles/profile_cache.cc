#include "service/profiles/profile_cache.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "calibration/profiles/threshold_profile_of.h"
#include "engine/base/error.h"
#include "engine/base/out_of_memory.h"
#include "kernels/failpoint.h"
#include "service/wire/store_status.h"

namespace eta {
namespace {

// An error is not proof for long: what is not there may come.
constexpr std::chrono::seconds kErrorLife{10};
constexpr std::chrono::milliseconds kRetry{1000};
constexpr size_t kEntryBytes = 512;  // what an entry takes beside its numbers, roughly

// Neither tenants nor names hold a line break, so that one name's keys lie side by side.
std::string NameKey(const Tenant& tenant, const std::string& name) {
  return absl::StrCat(tenant.id(), "\n", name, "\n");
}

std::string SelectorKey(const ProfileSelector& selector) {
  if (const int64_t* version = std::get_if<int64_t>(&selector)) return absl::StrCat(*version);
  if (const std::string* alias = std::get_if<std::string>(&selector)) return *alias;
  return "";
}

// True for what the store says about the profile, false for trouble of the store's own.
bool IsAnswer(const absl::Status& status) {
  if (status.ok() || absl::IsNotFound(status) || absl::IsInvalidArgument(status)) return true;
  const std::string reason = GetErrorDetail(status).reason;
  return reason == "PROFILE_CORRUPT" || reason == "PROFILE_SCHEMA_TOO_NEW";
}

size_t BytesOf(const ThresholdProfile& profile) {
  return kEntryBytes + (profile.thresholds.size() + profile.head_z.size()) * sizeof(float);
}

LoadedProfile FactsOf(const ProfileRecord& record) {
  LoadedProfile facts{.tenant = record.tenant,
                      .name = record.name,
                      .version = record.version,
                      .checksum = record.checksum};
  const ProfileEvidence& evidence = record.content.evidence;
  if (evidence.held_out_sequences > 0) {
    facts.head_density = evidence.head_density;
    facts.union_density = evidence.union_density;
  }
  return facts;
}

}  // namespace

struct ProfileCache::Entry {
  std::string key;
  Tenant tenant;
  ProfileReference reference;

  std::optional<Answer> answer;  // of the store
  Clock::time_point verified;    // when the store was asked for it
  bool current = false;          // nothing is known to have changed since
  uint64_t changes = 0;          // a load that saw another number may have read what was before
  size_t bytes = 0;              // counted in bytes_
  std::list<Entry*>* list = nullptr;
  std::list<Entry*>::iterator place;

  std::vector<Done> waiting;
  bool demanded = false;
  bool to_refresh = false;
  bool erased = false;  // no longer in entries_; then nobody waits
};

ProfileCache::ProfileCache(ProfileStore& store, const ProfileCacheOptions& options)
    : store_(store), options_(options) {
  for (const bool refreshes : {false, true}) {
    threads_.emplace_back([this, refreshes] { Work(refreshes); });
  }
  // Before anything is loaded, so that no change is missed.
  watch_ = store_.Watch([this](const ProfileChange& change) { OnChange(change); });
}

ProfileCache::~ProfileCache() {
  watch_.reset();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  Close();
}

void ProfileCache::Close() {
  std::vector<Done> waiting;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (const auto& [key, entry] : entries_) {
      std::vector<Done> of_entry = TakeWaiting(*entry);
      std::move(of_entry.begin(), of_entry.end(), std::back_inserter(waiting));
    }
  }
  for (const Done& done : waiting) done(ServerDraining());
}

void ProfileCache::Resolve(const Tenant& tenant, const ProfileReference& reference, Done done) {
  Answer answer = ServerDraining();
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        entries_.find(NameKey(tenant, reference.name) + SelectorKey(reference.selector));
    const bool known = found != entries_.end() && Usable(*found->second, Clock::now());
    if (known) {
      Entry& entry = *found->second;
      entry.list->splice(entry.list->begin(), *entry.list, entry.place);
      answer = *entry.answer;
    } else if (!closed_ && !HasRoom(WaitingOf(tenant), waiting_, options_.max_waiting)) {
      answer = MakeError(absl::StatusCode::kResourceExhausted,
                         "too many requests wait for the profile store",
                         {.reason = "QUEUE_FULL", .retry_after = kRetry});
    } else if (!closed_) {
      const EntryPtr entry = FindOrAdd(tenant, reference);
      size_t& of_tenant = waiting_of_[tenant.id()];
      Demand(entry);
      entry->waiting.push_back(std::move(done));
      ++of_tenant;  // from here on nothing fails
      ++waiting_;
      return;
    }
  }
  done(std::move(answer));
}

bool ProfileCache::Usable(const Entry& entry, Clock::time_point now) const {
  if (!entry.answer) return false;
  const auto age = now - entry.verified;
  if (age > options_.staleness) return false;
  return entry.answer->ok() || (entry.current && age <= kErrorLife);
}

ProfileCache::EntryPtr ProfileCache::FindOrAdd(const Tenant& tenant,
                                               const ProfileReference& reference) {
  const std::string key = NameKey(tenant, reference.name) + SelectorKey(reference.selector);
  EntryPtr& entry = entries_[key];
  if (entry == nullptr) {
    entry = std::make_shared<Entry>(Entry{.key = key, .tenant = tenant, .reference = reference});
  }
  return entry;
}

std::vector<ProfileCache::EntryPtr> ProfileCache::EntriesOf(const Tenant& tenant,
                                                            const std::string& name) const {
  const std::string prefix = NameKey(tenant, name);
  std::vector<EntryPtr> entries;
  for (auto i = entries_.lower_bound(prefix);
       i != entries_.end() && absl::StartsWith(i->first, prefix); ++i) {
    entries.push_back(i->second);
  }
  return entries;
}

void ProfileCache::Add(const ProfileRecord& record) {
  const std::lock_guard lock(mutex_);
  const auto profile = Shared(record);
  const EntryPtr newest = FindOrAdd(record.tenant, {.name = record.name, .selector = Newest()});
  const bool older =
      !newest->answer || !newest->answer->ok() || (**newest->answer)->version < record.version;
  if (older) SetAnswer(*newest, profile, Clock::now());
  for (const EntryPtr& entry : EntriesOf(record.tenant, record.name)) {
    ++entry->changes;
    entry->current = false;  // another server may have stored the next one by now
    if (entry->answer && entry->answer->ok()) Refresh(entry);
  }
  Evict();
}

void ProfileCache::Forget(const Tenant& tenant, const std::string& name) {
  const std::lock_guard lock(mutex_);
  for (const EntryPtr& entry : EntriesOf(tenant, name)) {
    ++entry->changes;
    DropAnswer(*entry);
    if (entry->waiting.empty()) Erase(*entry);
  }
}

void ProfileCache::OnChange(const ProfileChange& change) {
  const std::lock_guard lock(mutex_);
  const auto changed = [this](const EntryPtr& entry) {
    ++entry->changes;
    entry->current = false;
    if (entry->answer && entry->answer->ok()) Refresh(entry);
  };
  if (change.tenant) {
    for (const EntryPtr& entry : EntriesOf(*change.tenant, change.name)) changed(entry);
  } else {
    for (const auto& [key, entry] : entries_) changed(entry);
  }
}

void ProfileCache::Refresh(const EntryPtr& entry) {
  if (std::exchange(entry->to_refresh, true)) return;
  to_refresh_.push_back(entry);
  wake_.notify_all();
}

void ProfileCache::RefreshWhatIsOld(Clock::time_point now) {
  for (const auto& [key, entry] : entries_) {
    if (!entry->answer || !entry->answer->ok()) continue;
    if (!entry->current || now - entry->verified > options_.staleness / 4) Refresh(entry);
  }
  std::erase_if(profiles_, [](const auto& profile) { return profile.second.profile.expired(); });
}

void ProfileCache::Demand(const EntryPtr& entry) {
  if (entry->demanded) return;
  demanded_.Push(entry->tenant.id(), entry);
  entry->demanded = true;
  wake_.notify_all();
}

std::vector<ProfileCache::Done> ProfileCache::TakeWaiting(Entry& entry) {
  std::vector<Done> waiting = std::exchange(entry.waiting, {});
  if (waiting.empty()) return waiting;
  waiting_ -= waiting.size();
  const auto of_tenant = waiting_of_.find(entry.tenant.id());
  of_tenant->second -= waiting.size();
  if (of_tenant->second == 0) waiting_of_.erase(of_tenant);
  return waiting;
}

size_t ProfileCache::WaitingOf(const Tenant& tenant) const {
  const auto found = waiting_of_.find(tenant.id());
  return found == waiting_of_.end() ? 0 : found->second;
}

// Two threads: one answers requests only, so that none waits behind what is merely old; the other
// loads what is old first, so that a flood of requests does not keep that from being renewed.
void ProfileCache::Work(bool refreshes) {
  const auto period = std::clamp<std::chrono::milliseconds>(
      options_.staleness / 8, std::chrono::milliseconds(10), std::chrono::milliseconds(1000));
  Clock::time_point next_look = Clock::now() + period;
  std::unique_lock lock(mutex_);
  const auto has_work = [&] {
    return stop_ || !demanded_.empty() || (refreshes && !to_refresh_.empty());
  };
  while (!stop_) {
    if (!refreshes) {
      wake_.wait(lock, has_work);
    } else if (!wake_.wait_until(lock, next_look, has_work) || Clock::now() >= next_look) {
      if (!ETA_FAILPOINT(kCacheRefresh)) RefreshWhatIsOld(Clock::now());
      next_look = Clock::now() + period;
    }
    if (stop_) return;
    const EntryPtr entry = TakeNext(refreshes);
    if (entry == nullptr || Load(lock, entry)) continue;
    // The store is in trouble: what is merely old waits for the next look.
    for (const EntryPtr& other : to_refresh_) other->to_refresh = false;
    to_refresh_.clear();
  }
}

// Null: there is nothing for this thread.
ProfileCache::EntryPtr ProfileCache::TakeNext(bool refreshes) {
  EntryPtr entry;
  if (refreshes && !to_refresh_.empty()) {
    entry = std::move(to_refresh_.front());
    to_refresh_.pop_front();
    entry->to_refresh = false;
  } else if (!demanded_.empty()) {
    entry = demanded_.Pop();
    entry->demanded = false;
  }
  return entry;
}

// False: the store did not say.
bool ProfileCache::Load(std::unique_lock<std::mutex>& lock, const EntryPtr& entry) {
  if (entry->erased) return true;
  const uint64_t changes = entry->changes;
  lock.unlock();
  const Clock::time_point asked = Clock::now();
  const absl::StatusOr<ProfilePtr> loaded = CatchOutOfMemory([&]() -> absl::StatusOr<ProfilePtr> {
    if (ETA_FAILPOINT(kCacheLoad)) return OutOfMemory();
    return store_.Get(entry->tenant, entry->reference.name, entry->reference.selector);
  });
  lock.lock();
  const bool answered = IsAnswer(loaded.status());
  ++(answered ? reads_.reads : reads_.failed_reads);
  if (answered) reads_.last_read = Clock::now();
  if (answered && entry->changes != changes) {  // it may have been read before the change
    if (entry->waiting.empty()) {
      Refresh(entry);
    } else {
      Demand(entry);
    }
    return true;
  }
  const Answer answer = loaded.ok() ? Answer(Shared(**loaded)) : Answer(loaded.status());
  const std::vector<Done> waiting = TakeWaiting(*entry);
  if (answered && !entry->erased) {
    SetAnswer(*entry, answer, asked);
    Evict();
  } else if (!entry->erased && !entry->answer) {
    Erase(*entry);
  }
  lock.unlock();
  for (const Done& done : waiting) done(answer);
  lock.lock();
  return answered;
}

std::shared_ptr<const ThresholdProfile> ProfileCache::Shared(const ProfileRecord& record) {
  const auto known = profiles_.find(record.checksum);
  if (known != profiles_.end()) {
    if (auto profile = known->second.profile.lock()) return profile;
  }
  auto profile = ThresholdProfileOf(record);
  profiles_.insert_or_assign(record.checksum, Known{.profile = profile, .facts = FactsOf(record)});
  return profile;
}

std::vector<LoadedProfile> ProfileCache::Loaded(const std::optional<Tenant>& tenant) const {
  std::vector<LoadedProfile> loaded;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [checksum, known] : profiles_) {
      if (known.profile.expired() || (tenant && known.facts.tenant != *tenant)) continue;
      loaded.push_back(known.facts);
    }
  }
  std::sort(loaded.begin(), loaded.end(), [](const LoadedProfile& a, const LoadedProfile& b) {
    return std::tie(a.tenant, a.name, a.version) < std::tie(b.tenant, b.name, b.version);
  });
  return loaded;
}

size_t ProfileCache::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

ProfileCacheFigures ProfileCache::Figures() const {
  const std::lock_guard lock(mutex_);
  ProfileCacheFigures figures = reads_;
  figures.bytes = static_cast<int64_t>(bytes_);
  for (const Entry* const entry : found_) {
    if (!figures.oldest || entry->verified < *figures.oldest) figures.oldest = entry->verified;
  }
  return figures;
}

void ProfileCache::SetAnswer(Entry& entry, Answer answer, Clock::time_point verified) {
  std::list<Entry*>* const list = answer.ok() ? &found_ : &missing_;
  if (entry.list != list) {
    DropAnswer(entry);
    list->push_front(&entry);
    entry.list = list;
    entry.place = list->begin();
  }
  bytes_ -= entry.bytes;
  entry.bytes = answer.ok() ? BytesOf(**answer) : 0;
  bytes_ += entry.bytes;
  entry.answer = std::move(answer);
  entry.verified = verified;
  entry.current = true;
}

void ProfileCache::DropAnswer(Entry& entry) {
  if (entry.list != nullptr) entry.list->erase(entry.place);
  entry.list = nullptr;
  bytes_ -= entry.bytes;
  entry.bytes = 0;
  entry.answer.reset();
  entry.current = false;
}

void ProfileCache::Erase(Entry& entry) {
  DropAnswer(entry);
  entry.erased = true;
  entries_.erase(entry.key);  // may be the last that holds it
}

void ProfileCache::Evict() {
  const auto drop_last = [this](std::list<Entry*>& list) {
    Entry& entry = *list.back();
    DropAnswer(entry);
    if (entry.waiting.empty()) Erase(entry);
  };
  while (bytes_ > options_.max_bytes && !found_.empty()) drop_last(found_);
  while (missing_.size() > options_.max_missing) drop_last(missing_);
}

}  // namespace eta
