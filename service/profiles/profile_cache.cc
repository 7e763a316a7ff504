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
#include "kernels/system/failpoint.h"
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
  return reason == "PROFILE_CORRUPT" || reason == "PROFILE_SCHEMA_MISMATCH" ||
         reason == "PROFILE_MISMATCH";
}

size_t BytesOf(const ThresholdProfile& profile) {
  return kEntryBytes + (profile.thresholds.size() + profile.head_z.size()) * sizeof(float);
}

LoadedProfile Describe(const ProfileRecord& record) {
  LoadedProfile loaded{.tenant = record.tenant,
                       .name = record.name,
                       .version = record.version,
                       .checksum = record.checksum};
  const ProfileEvidence& evidence = record.content.evidence;
  if (evidence.held_out_sequences > 0) {
    loaded.head_density = evidence.head_density;
    loaded.union_density = evidence.union_density;
    loaded.retained_mass = evidence.retained_mass;
    loaded.measured_context = MeasuredContext(evidence);
  }
  return loaded;
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

  std::vector<Waiter> waiting;
  bool demanded = false;
  bool to_refresh = false;
  bool erased = false;  // no longer in entries_; then nobody waits
};

ProfileCache::ProfileCache(ProfileStore& store, const ProfileCacheOptions& options)
    : store_(store),
      options_(options),
      refresh_period_(std::clamp<std::chrono::milliseconds>(
          options_.staleness / 8, std::chrono::milliseconds(10), std::chrono::milliseconds(1000))),
      trouble_(options_.patience),
      next_refresh_(Clock::now() + refresh_period_),
      answering_("profile_answer", [this] { return LoadNext(/*refreshes=*/false); }),
      refreshing_("profile_refresh", [this] { return LoadNext(/*refreshes=*/true); }),
      patience_("profile_wait", [this] { return EndPatience(); }) {
  // Before anything is loaded, so that no change is missed.
  watch_ = store_.Watch([this](const ProfileChange& change) { OnChange(change); });
}

ProfileCache::~ProfileCache() {
  watch_.Release();
  answering_.Stop();
  refreshing_.Stop();
  patience_.Stop();
  Close();
}

void ProfileCache::Close() {
  std::vector<Waiter> waiting;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    for (const auto& [key, entry] : entries_) {
      std::vector<Waiter> of_entry = DrainWaiting(*entry);
      std::move(of_entry.begin(), of_entry.end(), std::back_inserter(waiting));
    }
  }
  for (const Waiter& waiter : waiting) waiter.done(ServerDraining());
}

void ProfileCache::Resolve(const Tenant& tenant, const ProfileReference& reference, Done done) {
  Resolve(tenant, reference, /*is_default=*/false, std::move(done));
}

void ProfileCache::ResolveDefault(const Tenant& tenant, const ProfileReference& reference,
                                  Done done) {
  Resolve(tenant, reference, /*is_default=*/true, std::move(done));
}

void ProfileCache::Resolve(const Tenant& tenant, const ProfileReference& reference, bool is_default,
                           Done done) {
  Answer answer = ServerDraining();
  {
    const MutexLock lock(mutex_);
    const Clock::time_point now = Clock::now();
    const absl::Status trouble = is_default ? trouble_.At(now) : absl::OkStatus();
    const auto found =
        entries_.find(NameKey(tenant, reference.name) + SelectorKey(reference.selector));
    const EntryPtr entry = found == entries_.end() ? nullptr : found->second;
    if (entry != nullptr && Usable(*entry, now)) {
      entry->list->splice(entry->list->begin(), *entry->list, entry->place);
      answer = *entry->answer;
    } else if (!closed_ && !trouble.ok()) {
      answer = entry != nullptr && Lasts(*entry, now) ? *entry->answer : Answer(trouble);
      if (trouble_.ShouldRetry(now)) Demand(FindOrAdd(tenant, reference));
    } else if (!closed_) {
      absl::Status full = Await(tenant, reference, is_default, done);
      if (full.ok()) return;
      answer = std::move(full);
    }
  }
  done(std::move(answer));
}

absl::Status ProfileCache::Await(const Tenant& tenant, const ProfileReference& reference,
                                 bool is_default, Done& done) {
  if (!HasRoom(WaitingOf(tenant), waiting_, options_.max_waiting)) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     "too many requests wait for the profile store",
                     {.reason = "QUEUE_FULL", .retry_after = kRetry});
  }
  const EntryPtr entry = FindOrAdd(tenant, reference);
  size_t& of_tenant = waiting_of_[tenant.id()];
  Demand(entry);
  Clock::time_point until = Clock::time_point::max();
  if (is_default) {
    until = Clock::now() + options_.patience;
    impatient_.emplace_back(until, entry);
    if (impatient_.size() == 1) patience_.Wake();
  }
  entry->waiting.push_back({.done = std::move(done), .until = until});
  ++of_tenant;  // from here on nothing fails
  ++waiting_;
  return absl::OkStatus();
}

Clock::time_point ProfileCache::EndPatience() {
  std::vector<std::pair<Done, Answer>> ends;
  Clock::time_point next = LoopThread::kWhenWoken;
  {
    const MutexLock lock(mutex_);
    const Clock::time_point now = Clock::now();
    for (; !impatient_.empty() && impatient_.front().first <= now; impatient_.pop_front()) {
      Entry& entry = *impatient_.front().second;
      const size_t others = entry.waiting.size();
      for (Waiter& waiter : entry.waiting) {
        if (waiter.until > now) continue;
        ends.emplace_back(std::move(waiter.done),
                          Lasts(entry, now) ? *entry.answer : Answer(StoreIsSlow()));
      }
      std::erase_if(entry.waiting, [&](const Waiter& waiter) { return waiter.until <= now; });
      CountDrained(entry.tenant, others - entry.waiting.size());
    }
    if (!impatient_.empty()) next = impatient_.front().first;
  }
  for (auto& [done, answer] : ends) done(std::move(answer));
  return next;
}

bool ProfileCache::Usable(const Entry& entry, Clock::time_point now) const {
  if (!entry.answer) return false;
  const auto age = now - entry.verified;
  if (age > options_.staleness) return false;
  return entry.answer->ok() || (entry.current && age <= kErrorLife);
}

bool ProfileCache::Lasts(const Entry& entry, Clock::time_point now) const {
  if (!entry.answer || now - entry.verified > options_.staleness) return false;
  return entry.answer->ok() || absl::IsNotFound(entry.answer->status());
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
  const MutexLock lock(mutex_);
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
  const MutexLock lock(mutex_);
  for (const EntryPtr& entry : EntriesOf(tenant, name)) {
    ++entry->changes;
    DropAnswer(*entry);
    if (entry->waiting.empty()) Erase(*entry);
  }
}

void ProfileCache::OnChange(const ProfileChange& change) {
  const MutexLock lock(mutex_);
  const auto changed = [this](const EntryPtr& entry) REQUIRES(mutex_) {
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
  refreshing_.Wake();
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
  answering_.Wake();
  refreshing_.Wake();
}

std::vector<ProfileCache::Waiter> ProfileCache::DrainWaiting(Entry& entry) {
  std::vector<Waiter> waiting = std::exchange(entry.waiting, {});
  CountDrained(entry.tenant, waiting.size());
  return waiting;
}

void ProfileCache::CountDrained(const Tenant& tenant, size_t drained) {
  if (drained == 0) return;
  waiting_ -= drained;
  const auto of_tenant = waiting_of_.find(tenant.id());
  of_tenant->second -= drained;
  if (of_tenant->second == 0) waiting_of_.erase(of_tenant);
}

size_t ProfileCache::WaitingOf(const Tenant& tenant) const {
  const auto found = waiting_of_.find(tenant.id());
  return found == waiting_of_.end() ? 0 : found->second;
}

Clock::time_point ProfileCache::LoadNext(bool refreshes) {
  Loading loading;
  {
    const MutexLock lock(mutex_);
    if (refreshes && Clock::now() >= next_refresh_) {
      if (!ETA_FAILPOINT(kCacheRefresh)) RefreshWhatIsOld(Clock::now());
      next_refresh_ = Clock::now() + refresh_period_;
    }
    loading.entry = PopNext(refreshes);
    if (loading.entry == nullptr) return refreshes ? next_refresh_ : LoopThread::kWhenWoken;
    if (loading.entry->erased) return Clock::now();
    loading.changes = loading.entry->changes;
    trouble_.Begin(refreshes ? 1 : 0, Clock::now());
  }
  const Entry& entry = *loading.entry;
  loading.asked = Clock::now();
  loading.record = CatchOutOfMemory([&]() -> absl::StatusOr<ProfilePtr> {
    if (ETA_FAILPOINT(kCacheLoad)) return OutOfMemory();
    return store_.Get(entry.tenant, entry.reference.name, entry.reference.selector);
  });
  std::vector<Waiter> waiting;
  Answer answer = std::shared_ptr<const ThresholdProfile>();
  {
    const MutexLock lock(mutex_);
    const absl::Status& status = loading.record.status();
    trouble_.End(refreshes ? 1 : 0, IsAnswer(status) ? absl::OkStatus() : status, Clock::now());
    waiting = Keep(loading, answer);
  }
  for (const Waiter& waiter : waiting) waiter.done(answer);
  return Clock::now();  // there may be more
}

std::vector<ProfileCache::Waiter> ProfileCache::Keep(const Loading& loading, Answer& answer) {
  const auto& [entry, changes, asked, record] = loading;
  const bool answered = IsAnswer(record.status());
  ++(answered ? reads_.reads : reads_.failed_reads);
  if (answered) reads_.last_read = Clock::now();
  if (answered && entry->changes != changes) {  // it may have been read before the change
    if (entry->waiting.empty()) {
      Refresh(entry);
    } else {
      Demand(entry);
    }
    return {};
  }
  answer = record.ok() ? Answer(Shared(**record)) : Answer(record.status());
  if (!answered && Lasts(*entry, Clock::now())) answer = *entry->answer;
  std::vector<Waiter> waiting = DrainWaiting(*entry);
  if (answered && !entry->erased) {
    SetAnswer(*entry, answer, asked);
    Evict();
  } else if (!entry->erased && !entry->answer) {
    Erase(*entry);
  }
  // The store is in trouble: what is merely old waits for the next refresh.
  if (!answered) RefreshNothing();
  return waiting;
}

void ProfileCache::RefreshNothing() {
  for (const EntryPtr& entry : to_refresh_) entry->to_refresh = false;
  to_refresh_.clear();
}

ProfileCache::EntryPtr ProfileCache::PopNext(bool refreshes) {
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

std::shared_ptr<const ThresholdProfile> ProfileCache::Shared(const ProfileRecord& record) {
  const auto known = profiles_.find(record.checksum);
  if (known != profiles_.end()) {
    if (auto profile = known->second.profile.lock()) return profile;
  }
  auto profile = ThresholdProfileOf(record);
  profiles_.insert_or_assign(record.checksum,
                             Known{.profile = profile, .loaded = Describe(record)});
  return profile;
}

std::vector<LoadedProfile> ProfileCache::Loaded(const std::optional<Tenant>& tenant) const {
  std::vector<LoadedProfile> loaded;
  {
    const MutexLock lock(mutex_);
    for (const auto& [checksum, known] : profiles_) {
      if (known.profile.expired() || (tenant && known.loaded.tenant != *tenant)) continue;
      loaded.push_back(known.loaded);
    }
  }
  std::sort(loaded.begin(), loaded.end(), [](const LoadedProfile& a, const LoadedProfile& b) {
    return std::tie(a.tenant, a.name, a.version) < std::tie(b.tenant, b.name, b.version);
  });
  return loaded;
}

size_t ProfileCache::waiting() const {
  const MutexLock lock(mutex_);
  return waiting_;
}

ProfileCacheStatus ProfileCache::Status() const {
  const MutexLock lock(mutex_);
  ProfileCacheStatus status = reads_;
  status.bytes = static_cast<int64_t>(bytes_);
  for (const Entry* const entry : found_) {
    if (!status.oldest || entry->verified < *status.oldest) status.oldest = entry->verified;
  }
  return status;
}

int64_t ProfileCache::TenantsWith(const ProfileReference& reference) const {
  const MutexLock lock(mutex_);
  return std::count_if(found_.begin(), found_.end(), [&](const Entry* entry) {
    return entry->reference.name == reference.name &&
           entry->reference.selector == reference.selector;
  });
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
  const auto drop_last = [this](std::list<Entry*>& list) REQUIRES(mutex_) {
    Entry& entry = *list.back();
    DropAnswer(entry);
    if (entry.waiting.empty()) Erase(entry);
  };
  while (bytes_ > options_.max_bytes && !found_.empty()) drop_last(found_);
  while (missing_.size() > options_.max_missing) drop_last(missing_);
}

}  // namespace eta
