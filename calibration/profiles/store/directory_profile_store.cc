#include "calibration/profiles/store/directory_profile_store.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/profiles/profile_blob.h"
#include "calibration/profiles/store/page_token.h"
#include "calibration/profiles/store/store_error.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

const FolderProfile* Find(const FolderProfiles& profiles, const Tenant& tenant,
                          const std::string& name) {
  const auto names = profiles.find(tenant);
  if (names == profiles.end()) return nullptr;
  const auto profile = names->second.find(name);
  return profile == names->second.end() ? nullptr : &profile->second;
}

ProfilePtr FindVersion(const FolderProfile& profile, int64_t version) {
  const auto found = profile.versions.find(version);
  return found == profile.versions.end() ? nullptr : found->second;
}

bool Fits(const std::string& fingerprint, const ServedModel& served) {
  return served.fingerprint.empty() || fingerprint == served.fingerprint;
}

// The highest version that fits; null if there is none.
ProfilePtr NewestOf(const FolderProfile& profile, const ServedModel& served) {
  const auto newest = std::find_if(
      profile.versions.rbegin(), profile.versions.rend(),
      [&](const auto& version) { return Fits(version.second->content.model_fingerprint, served); });
  return newest == profile.versions.rend() ? nullptr : newest->second;
}

// The highest version that an alias names and that fits; null if there is none.
ProfilePtr AliasedOf(const FolderProfile& profile, const std::map<std::string, int64_t>& named,
                     const ServedModel& served) {
  int64_t highest = 0;
  for (const auto& [fingerprint, version] : named) {
    if (Fits(fingerprint, served)) highest = std::max(highest, version);
  }
  return FindVersion(profile, highest);
}

// OK, or why a version is not served.
absl::Status StateOf(const FolderProfile& profile, const ProfilePtr& version) {
  const auto refused = profile.refused.find(version->version);
  return refused == profile.refused.end() ? absl::OkStatus() : refused->second;
}

absl::StatusOr<ProfileSummary> Summary(const FolderProfile& profile, const ProfilePtr& version) {
  ProfileSummary summary{.name = version->name,
                         .version = version->version,
                         .create_time_us = version->create_time_us,
                         .bytes = 0,  // of a refused one: nothing of it is held
                         .model_fingerprint = version->content.model_fingerprint};
  if (!StateOf(profile, version).ok()) return summary;
  ProfileRecord copy = *version;
  ASSIGN_OR_RETURN(const std::string blob, EncodeProfile(copy));
  summary.bytes = static_cast<int64_t>(blob.size());
  return summary;
}

bool Same(const FolderProfile* a, const FolderProfile* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a->aliases == b->aliases &&
         std::equal(a->versions.begin(), a->versions.end(), b->versions.begin(), b->versions.end(),
                    [](const auto& left, const auto& right) {
                      return left.first == right.first &&
                             left.second->checksum == right.second->checksum;
                    });
}

// True if the verdict holds until the files change. Otherwise they may be sound and could not be
// read.
bool IsVerdict(const absl::Status& status) {
  return status.ok() || absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsPermissionDenied(status) || absl::IsNotFound(status) ||
         HasReason(status, "PROFILE_QUOTA");
}

// Reads a set of profiles at a moment at which the folder did not change; `stamp` is of that
// moment.
absl::StatusOr<FolderProfiles> ReadSteady(const std::string& path, const std::string& stamp) {
  absl::StatusOr<FolderProfiles> profiles = ReadProfileFolder(path);
  ASSIGN_OR_RETURN(const std::string after, FolderStamp(path));
  if (after != stamp) return StoreBusy();
  return profiles;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DirectoryProfileStore>> DirectoryProfileStore::Open(
    const std::string& path, const ProfileStoreOptions& options) {
  constexpr int kAttempts = 10;
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    ASSIGN_OR_RETURN(std::string stamp, FolderStamp(path));
    absl::StatusOr<FolderProfiles> profiles = ReadSteady(path, stamp);
    status = profiles.status();
    if (profiles.ok()) {
      return std::unique_ptr<DirectoryProfileStore>(
          new DirectoryProfileStore(path, std::move(stamp), *std::move(profiles), options));
    }
    if (!HasReason(status, "STORE_BUSY")) return status;
  }
  return status;
}

DirectoryProfileStore::DirectoryProfileStore(std::string path, std::string stamp,
                                             FolderProfiles profiles,
                                             const ProfileStoreOptions& options)
    : path_(std::move(path)),
      served_model_(options.served_model),
      profiles_(std::make_shared<const FolderProfiles>(std::move(profiles))),
      stamp_(std::move(stamp)),
      told_(profiles_),
      poll_(
          options.poll_interval, [this] { Reload(); }, [] { return -1; }) {}

DirectoryProfileStore::Set DirectoryProfileStore::Current() const {
  const MutexLock lock(mutex_);
  return profiles_;
}

ServedModel DirectoryProfileStore::Served() const {
  return served_model_ ? served_model_() : ServedModel();
}

void DirectoryProfileStore::Reload() {
  absl::StatusOr<std::string> stamp = FolderStamp(path_);
  if (stamp.ok() && stamp_ == *stamp) return;
  absl::StatusOr<FolderProfiles> read =
      stamp.ok() ? ReadSteady(path_, *stamp) : absl::StatusOr<FolderProfiles>(stamp.status());
  // A folder in motion is read again at the next poll.
  if (HasReason(read.status(), "STORE_BUSY")) return;
  stamp_.reset();
  const absl::Status health = read.status();
  const Set after =
      health.ok() ? std::make_shared<const FolderProfiles>(*std::move(read)) : Current();
  {
    const MutexLock lock(mutex_);
    health_ = health;
    profiles_ = after;
  }
  std::set<std::pair<Tenant, std::string>> keys;
  for (const Set& set : {told_, after}) {
    for (const auto& [tenant, names] : *set) {
      for (const auto& [name, profile] : names) keys.emplace(tenant, name);
    }
  }
  for (const auto& [tenant, name] : keys) {
    if (!Same(Find(*told_, tenant, name), Find(*after, tenant, name))) {
      feed_.Tell({.tenant = tenant, .name = name});
    }
  }
  told_ = after;
  // This comes last: if telling throws, the next look tells again.
  if (stamp.ok() && IsVerdict(health)) stamp_ = *std::move(stamp);
}

absl::StatusOr<ProfilePtr> DirectoryProfileStore::Put(const Tenant& /*tenant*/,
                                                      const PutProfile& /*put*/) {
  return StoreReadOnly();
}

absl::StatusOr<ProfilePtr> DirectoryProfileStore::CheckPut(const Tenant& /*tenant*/,
                                                           const PutProfile& /*put*/) const {
  return StoreReadOnly();
}

absl::StatusOr<ProfilePtr> DirectoryProfileStore::Get(const Tenant& tenant, const std::string& name,
                                                      const ProfileSelector& selector) const {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  const int64_t* version = std::get_if<int64_t>(&selector);
  if (version != nullptr && *version < 1) return InvalidField("version", "must be at least 1");
  const std::string* alias = std::get_if<std::string>(&selector);
  if (alias != nullptr) {
    RETURN_IF_ERROR(CheckProfileAlias("alias", *alias));
  }
  const Set profiles = Current();
  const FolderProfile* profile = Find(*profiles, tenant, name);
  if (profile == nullptr) return NoSuchProfile();
  const ServedModel served = Served();
  ProfilePtr found, any;
  if (alias != nullptr) {
    const auto named = profile->aliases.find(*alias);
    if (named == profile->aliases.end()) return NoSuchProfile();
    found = AliasedOf(*profile, named->second, served);
    any = AliasedOf(*profile, named->second, {});
  } else {
    found = version == nullptr ? NewestOf(*profile, served) : FindVersion(*profile, *version);
    any = version == nullptr ? NewestOf(*profile, {}) : nullptr;
  }
  if (found == nullptr && any == nullptr) return NoSuchProfile();
  RETURN_IF_ERROR(StateOf(*profile, found != nullptr ? found : any));
  if (found != nullptr) return found;
  return NoFittingVersion(any->content.model_fingerprint, served.fingerprint);
}

absl::StatusOr<ProfileList> DirectoryProfileStore::List(const Tenant& tenant,
                                                        const ProfilePage& page) const {
  ASSIGN_OR_RETURN(const std::string last, ReadNamePage(tenant, page));
  const Set profiles = Current();
  const ServedModel served = Served();
  const auto names = profiles->find(tenant);
  ProfileList list;
  if (names == profiles->end()) return list;
  for (auto it = names->second.upper_bound(last); it != names->second.end(); ++it) {
    if (list.profiles.size() == static_cast<size_t>(page.rows())) {
      list.next_token = MakePageToken(tenant, "", list.profiles.back().name);
      break;
    }
    const ProfilePtr newest = NewestOf(it->second, served);
    ASSIGN_OR_RETURN(
        ProfileSummary summary,
        Summary(it->second, newest != nullptr ? newest : it->second.versions.rbegin()->second));
    list.profiles.push_back(std::move(summary));
  }
  return list;
}

absl::StatusOr<ProfileList> DirectoryProfileStore::ListVersions(const Tenant& tenant,
                                                                const std::string& name,
                                                                const ProfilePage& page) const {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  ASSIGN_OR_RETURN(const int64_t before, ReadVersionPage(tenant, name, page));
  const Set profiles = Current();
  const FolderProfile* profile = Find(*profiles, tenant, name);
  if (profile == nullptr) return NoSuchProfile();
  ProfileList list;
  for (auto it = profile->versions.rbegin(); it != profile->versions.rend(); ++it) {
    if (it->first >= before) continue;
    if (list.profiles.size() == static_cast<size_t>(page.rows())) {
      list.next_token = MakePageToken(tenant, name, absl::StrCat(list.profiles.back().version));
      break;
    }
    ASSIGN_OR_RETURN(ProfileSummary summary, Summary(*profile, it->second));
    list.profiles.push_back(std::move(summary));
  }
  return list;
}

absl::StatusOr<std::vector<ProfileAlias>> DirectoryProfileStore::ListAliases(
    const Tenant& tenant, const std::string& name) const {
  RETURN_IF_ERROR(CheckProfileName("name", name));
  const Set profiles = Current();
  std::vector<ProfileAlias> aliases;
  if (const FolderProfile* profile = Find(*profiles, tenant, name)) {
    for (const auto& [alias, named] : profile->aliases) {
      for (const auto& [fingerprint, version] : named) aliases.push_back({alias, version});
    }
  }
  return aliases;
}

absl::Status DirectoryProfileStore::SetAlias(const Tenant& /*tenant*/, const PutAlias& /*put*/) {
  return StoreReadOnly();
}

absl::Status DirectoryProfileStore::Promote(const Tenant& /*tenant*/,
                                            const PromoteProfile& /*promote*/) {
  return StoreReadOnly();
}

absl::Status DirectoryProfileStore::DeleteVersion(const Tenant& /*tenant*/,
                                                  const std::string& /*name*/,
                                                  int64_t /*version*/) {
  return StoreReadOnly();
}

absl::Status DirectoryProfileStore::Delete(const Tenant& /*tenant*/, const std::string& /*name*/,
                                           std::optional<int64_t> /*expected_version*/) {
  return StoreReadOnly();
}

Lease DirectoryProfileStore::Watch(ProfileWatcher watcher) {
  return feed_.Watch(std::move(watcher));
}

absl::Status DirectoryProfileStore::Health() const {
  const MutexLock lock(mutex_);
  return health_;
}

}  // namespace eta
