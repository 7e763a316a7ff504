// Where profiles live: versioned, per tenant, acknowledged only once they are safe.
//
// A profile is a name with versions 1, 2, ... that never change and never repeat, also after they
// or the name were deleted. An alias is a second name for one version ("stable"). A tenant can
// neither see another tenant's profiles nor learn of them from an error: an unknown name and
// another tenant's name are NOT_FOUND in the same words.
//
// Versions for several models live under one name, side by side. The newest version of a name is
// the highest that fits the served model (ServedModel) and is not staged. A staged version is found
// by its number, or by an alias, until Promote makes it the newest. An alias names one version for
// each model. So while a fleet changes from one model to the next, each server finds its own
// versions under the same references.
//
// Every function may block on the store and may be called from any thread. Readers do not wait for
// writers. Errors common to all:
//   UNAVAILABLE (STORE_UNAVAILABLE, STORE_BUSY)  the store cannot be reached or is locked; repeat
//   INTERNAL (STORE_IO_ERROR)                    a disk fails
//   DATA_LOSS (STORE_CORRUPT, PROFILE_CORRUPT)   data fails its checks
//   INVALID_ARGUMENT                             names the field
//
// A profile that fails its checks is DATA_LOSS for who asks for it and affects no other profile. It
// is never served, and no other profile is served in its place. Lists mark it, and Health reports
// it. A new version of its name, an alias to a sound version, or Delete mends it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
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

// The model that the reader of a store serves. A version fits if it was calibrated for that model.
struct ServedModel {
  std::string fingerprint;  // EngineInfo's; empty: every version fits
};

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
  // Absent: any newest version. 0: there must be no newest version. Else: the newest version must
  // be this one. Newest means: for the content's model, or for the served model where the content
  // does not name one yet (CheckPut).
  std::optional<int64_t> expected_version;
  std::string request_id;      // together with a digest, or both empty
  std::string payload_digest;  // 64 hexadecimal digits
  bool stage = false;          // stored, but not the newest until it is promoted
};

struct PutAlias {
  std::string name;
  std::string alias;
  int64_t version = 0;  // 0: remove the alias
  // The version it names now, for the model of `version`; 0: it must be free there. Of a removal:
  // one of the versions that it names, and it goes on to name the others. Absent: any; a removal
  // then removes it for every model.
  std::optional<int64_t> expected_version;
};

struct PromoteProfile {
  std::string name;
  int64_t version = 0;
  // The newest version now, for the model of `version`; 0: there must be none. Absent: any.
  std::optional<int64_t> expected_version;
};

struct ProfileSummary {
  std::string name;
  int64_t version = 0;
  int64_t create_time_us = 0;
  int64_t bytes = 0;
  std::string model_fingerprint;  // that it was calibrated for; empty: not known
  bool staged = false;
  bool corrupt = false;  // failed its checks at the last read: Get is DATA_LOSS
};
// An alias that names versions for several models is there once for each.
struct ProfileAlias {
  std::string alias;
  int64_t version = 0;
};

struct ProfilePage {
  static constexpr int32_t kUsual = 50;
  static constexpr int32_t kMost = 1000;

  int32_t size = 0;   // 0: kUsual; kMost, if it is more
  std::string token;  // of the page before; empty: the first page

  // REQUIRES: `size` is not negative.
  int32_t rows() const { return size == 0 ? kUsual : std::min(size, kMost); }
};
struct ProfileList {
  std::vector<ProfileSummary> profiles;
  std::string next_token;  // empty: this was the last page
};

// The quota of one tenant. Deleted versions count in `versions_ever`, since they are remembered.
struct ProfileQuota {
  int64_t versions = 1000;
  int64_t bytes = int64_t{256} << 20;
  int64_t versions_ever = 100'000;
};

// How much of its quota a tenant uses.
struct ProfileUse {
  int64_t versions = 0;
  int64_t bytes = 0;
  int64_t versions_ever = 0;

  friend bool operator==(const ProfileUse&, const ProfileUse&) = default;
};

// The profile may have changed; without a tenant, any profile may have. A change by any process is
// reported within a second at least once; a report may also come without a change. It comes on a
// thread of the store, so the watcher must not block nor call the store.
struct ProfileChange {
  std::optional<Tenant> tenant;
  std::string name;
};
using ProfileWatcher = std::function<void(const ProfileChange&)>;

class ProfileStore {
 public:
  virtual ~ProfileStore() = default;

  // Returns the stored record once it is durable. If the same request id and digest were used
  // before, returns the first record and writes nothing; NOT_FOUND if that was deleted since. With
  // ProfileStoreOptions::keep_versions, older versions of the same name and model go.
  // Errors:
  //   ALREADY_EXISTS (REQUEST_ID_REUSED)            the id had another digest or name
  //   ALREADY_EXISTS (PROFILE_EXISTS)               the name is taken; expected version 0
  //   ABORTED (VERSION_MISMATCH)                    the newest version is another one
  //   RESOURCE_EXHAUSTED (PROFILE_QUOTA, STORE_FULL)
  //   UNAVAILABLE (OUTCOME_UNKNOWN)                 may have been stored; repeat with the same id
  //   FAILED_PRECONDITION (STORE_READ_ONLY)
  virtual absl::StatusOr<ProfilePtr> Put(const Tenant& tenant, const PutProfile& put) = 0;

  // Returns what Put would return now, as far as that is known without the content: the record that
  // this request id and digest made; Put's error; or null if nothing is in the way yet. For a
  // caller to whom the content costs work.
  virtual absl::StatusOr<ProfilePtr> CheckPut(const Tenant& tenant,
                                              const PutProfile& put) const = 0;

  // NOT_FOUND (PROFILE_NOT_FOUND) for an unknown name, version or alias, and for the newest version
  // of a name whose versions are all staged. FAILED_PRECONDITION (PROFILE_MISMATCH), if the name
  // has a newest version, or the alias a version, for other models only.
  virtual absl::StatusOr<ProfilePtr> Get(const Tenant& tenant, const std::string& name,
                                         const ProfileSelector& selector) const = 0;

  // The newest version of every name, sorted by name; of a name without one its highest version.
  // INVALID_ARGUMENT (page_size, page_token) for a negative size and a foreign token.
  virtual absl::StatusOr<ProfileList> List(const Tenant& tenant, const ProfilePage& page) const = 0;

  // Versions of a name, newest first; NOT_FOUND for an unknown name.
  virtual absl::StatusOr<ProfileList> ListVersions(const Tenant& tenant, const std::string& name,
                                                   const ProfilePage& page) const = 0;

  // The aliases of a name, sorted; none for an unknown name.
  virtual absl::StatusOr<std::vector<ProfileAlias>> ListAliases(const Tenant& tenant,
                                                                const std::string& name) const = 0;

  // ABORTED (VERSION_MISMATCH) if the alias names another version than expected. NOT_FOUND for an
  // unknown name or version. RESOURCE_EXHAUSTED (PROFILE_QUOTA) for more than 16 aliases of a name
  // and model.
  virtual absl::Status SetAlias(const Tenant& tenant, const PutAlias& put) = 0;

  // Makes a staged version the newest for its model. OK without a change if it is the newest
  // already, so a call may be repeated. NOT_FOUND for an unknown name or version. ABORTED
  // (VERSION_MISMATCH) if the newest version is another than expected, or a higher one.
  virtual absl::Status Promote(const Tenant& tenant, const PromoteProfile& promote) = 0;

  // Deletes one version; the next lower one may become the newest. NOT_FOUND for an unknown name or
  // version. FAILED_PRECONDITION (VERSION_HAS_ALIAS) if an alias names it.
  virtual absl::Status DeleteVersion(const Tenant& tenant, const std::string& name,
                                     int64_t version) = 0;

  // Deletes all versions and aliases of a name, for every model. NOT_FOUND for an unknown name.
  // ABORTED (VERSION_MISMATCH) if the highest version, staged or not, of whatever model, is not the
  // expected one (absent: any).
  virtual absl::Status Delete(const Tenant& tenant, const std::string& name,
                              std::optional<int64_t> expected_version) = 0;

  // Until the lease is given back, after which the watcher is not called any more.
  virtual Lease Watch(ProfileWatcher watcher) = 0;

  // How much the tenant has stored, at most a second old. Does not wait for the store. Absent: not
  // known yet, or the store is read-only.
  virtual std::optional<ProfileUse> Use(const Tenant& tenant) const = 0;

  // OK, or the fault of the store. UNAVAILABLE (STORE_FAILED): it takes no writes until it is
  // opened anew. DATA_LOSS (PROFILE_CORRUPT): it works except for some profiles.
  virtual absl::Status Health() const = 0;
};

struct ProfileStoreOptions {
  ProfileQuota quota;  // of every tenant
  // The quota of one tenant; if set, it replaces `quota`. Called at each Put and CheckPut, from any
  // thread.
  std::function<ProfileQuota(const Tenant&)> quota_of;
  std::chrono::milliseconds poll_interval{250};  // between looks for changes by others
  std::chrono::milliseconds busy_timeout{2000};  // wait for another writer
  // Unset: every version fits. Called by each call, from any thread.
  std::function<ServedModel()> served_model = nullptr;
  // A Put or Promote deletes all but so many of the highest promoted versions of its name and
  // model; a Put with `stage` likewise of the staged ones. Versions that an alias names stay, and
  // do not count. 0: all are kept.
  int32_t keep_versions = 0;
  // Told of the versions that keep_versions deleted, once that is durable.
  std::function<void(const Tenant&, const std::string& name, const std::vector<int64_t>& versions)>
      on_removed = nullptr;
};

}  // namespace eta
