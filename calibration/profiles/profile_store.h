// Where profiles live: versioned, per tenant, acknowledged only once they are safe.
//
// A profile is a name with versions 1, 2, ... that never change and never repeat, also after the
// name was deleted. An alias is a second name for one version ("stable"). What one tenant stores
// another can neither see nor feel in an error: an unknown name and another tenant's are NOT_FOUND
// in the same words.
//
// Every function may block on the store and is safe on any thread; readers do not wait for writers.
// Common to all: UNAVAILABLE (STORE_UNAVAILABLE, STORE_BUSY; may be repeated) while the store
// cannot be reached or is locked; INTERNAL (STORE_IO_ERROR) for a disk that fails; DATA_LOSS
// (STORE_CORRUPT, PROFILE_CORRUPT) for what fails its checks; INVALID_ARGUMENT naming the field.
//
// A profile that fails its checks is DATA_LOSS to who asks for it and hurts no other: it is never
// served and nothing is served in its place, lists go on and mark it, Health tells. A new version
// of its name, an alias to a sound one, or Delete mends it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/profiles/profile_record.h"
#include "engine/base/lease.h"
#include "engine/base/tenant.h"

namespace eta {

struct Newest {
  friend bool operator==(const Newest&, const Newest&) = default;
};
using ProfileSelector = std::variant<Newest, int64_t, std::string>;  // newest, version, alias

// "legal", "legal@3" or "legal@stable"; INVALID_ARGUMENT naming `field`.
struct ProfileReference {
  std::string name;
  ProfileSelector selector;
};
absl::StatusOr<ProfileReference> ParseProfileReference(const std::string& field,
                                                       std::string_view text);

struct PutProfile {
  std::string name;
  ProfileContent content;
  // Absent: whatever is there. 0: the name must be free. Else: the newest version must be this one.
  std::optional<int64_t> expected_version;
  std::string request_id;      // with a digest, or both empty
  std::string payload_digest;  // 64 hexadecimal digits
};

struct PutAlias {
  std::string name;
  std::string alias;
  int64_t version = 0;                      // 0: remove the alias
  std::optional<int64_t> expected_version;  // what it names now; 0: the alias must be free
};

struct ProfileSummary {
  std::string name;
  int64_t version = 0;
  int64_t create_time_us = 0;
  int64_t bytes = 0;
  bool corrupt = false;  // failed its checks when it was last read: Get is DATA_LOSS
};
struct ProfileAlias {
  std::string alias;
  int64_t version = 0;
};

struct ProfilePage {
  int32_t size = 50;  // 1 to 1000
  std::string token;  // of the page before; empty: the first
};
struct ProfileList {
  std::vector<ProfileSummary> profiles;
  std::string next_token;  // empty: this was the last page
};

// Of one tenant. Names that were deleted count among `versions_ever`, since they are remembered.
struct ProfileQuota {
  int64_t versions = 1000;
  int64_t bytes = int64_t{256} << 20;
  int64_t versions_ever = 100'000;
};

// What a tenant has stored of what its quota bounds.
struct ProfileUse {
  int64_t versions = 0;
  int64_t bytes = 0;
  int64_t versions_ever = 0;

  friend bool operator==(const ProfileUse&, const ProfileUse&) = default;
};

// May have changed; no tenant: anything may have. Comes at least once within a second of a change
// by any process, sometimes without one, on a thread of the store's: must not block nor call the
// store.
struct ProfileChange {
  std::optional<Tenant> tenant;
  std::string name;
};
using ProfileWatcher = std::function<void(const ProfileChange&)>;

class ProfileStore {
 public:
  virtual ~ProfileStore() = default;

  // The stored record, once it is durable. The same request id and digest again: the first record,
  // and nothing is written; NOT_FOUND if it was deleted since. ALREADY_EXISTS (REQUEST_ID_REUSED)
  // for the id with another digest or name, (PROFILE_EXISTS) for a taken name with expected version
  // 0; ABORTED (VERSION_MISMATCH) for another newest version; RESOURCE_EXHAUSTED (PROFILE_QUOTA,
  // STORE_FULL); UNAVAILABLE (OUTCOME_UNKNOWN): may have been stored, repeat it with the same
  // request id; FAILED_PRECONDITION (STORE_READ_ONLY).
  virtual absl::StatusOr<ProfilePtr> Put(const Tenant& tenant, const PutProfile& put) = 0;

  // What Put would answer now, as far as that is known without the content, which is not looked at:
  // the record that this request id and digest made, Put's error, or null where nothing is in the
  // way yet. For whoever has to work for the content.
  virtual absl::StatusOr<ProfilePtr> CheckPut(const Tenant& tenant,
                                              const PutProfile& put) const = 0;

  // NOT_FOUND (PROFILE_NOT_FOUND) for an unknown name, version or alias.
  virtual absl::StatusOr<ProfilePtr> Get(const Tenant& tenant, const std::string& name,
                                         const ProfileSelector& selector) const = 0;

  // Newest version of every name, by name. INVALID_ARGUMENT (page_token) for a token not from here.
  virtual absl::StatusOr<ProfileList> List(const Tenant& tenant, const ProfilePage& page) const = 0;

  // Versions of a name, newest first; NOT_FOUND for an unknown name.
  virtual absl::StatusOr<ProfileList> ListVersions(const Tenant& tenant, const std::string& name,
                                                   const ProfilePage& page) const = 0;

  // Of a name, by alias; none for an unknown name.
  virtual absl::StatusOr<std::vector<ProfileAlias>> ListAliases(const Tenant& tenant,
                                                                const std::string& name) const = 0;

  // ABORTED (VERSION_MISMATCH) if it names another version than expected; NOT_FOUND for an unknown
  // name or version; RESOURCE_EXHAUSTED (PROFILE_QUOTA) for over 16 aliases of a name.
  virtual absl::Status SetAlias(const Tenant& tenant, const PutAlias& put) = 0;

  // All versions and aliases of a name. NOT_FOUND for an unknown one; ABORTED (VERSION_MISMATCH) if
  // the newest is not the expected one (absent: any).
  virtual absl::Status Delete(const Tenant& tenant, const std::string& name,
                              std::optional<int64_t> expected_version) = 0;

  // Until the lease is given back, after which the watcher is not called any more.
  virtual Lease Watch(ProfileWatcher watcher) = 0;

  // What the tenant has stored, as of the last look at the store, a second ago at most; does not
  // wait for it. Absent: not known yet, or the store takes no profiles.
  virtual std::optional<ProfileUse> Use(const Tenant& tenant) const = 0;

  // OK, or what keeps the store from working as it should: UNAVAILABLE (STORE_FAILED) takes no
  // writes until it is opened anew; DATA_LOSS (PROFILE_CORRUPT) works but for some profiles.
  virtual absl::Status Health() const = 0;
};

struct ProfileStoreOptions {
  ProfileQuota quota;  // of every tenant ...
  // ... or of this one, if set. Called at each Put and CheckPut, by any thread.
  std::function<ProfileQuota(const Tenant&)> quota_of;
  std::chrono::milliseconds poll_interval{250};  // for changes by others
  std::chrono::milliseconds busy_timeout{2000};  // wait for another writer
};

}  // namespace eta
