// The rules of the profile store over SQL, shared by SQLite and PostgreSQL. Five tables:
//
//   eta_profiles  a version per row; `record` is the canonical blob. It is NULL once deleted, so
//                 that neither the number nor the request id is used again. model_fingerprint is
//                 the blob's; '' in rows that are older than the column. staged is 0 or 1.
//   eta_aliases   per name, alias and model the version; for every model where that is ''
//   eta_store     one row: the revision, which every change raises
//   eta_changes   per name, the revision at which it last changed
//   eta_uses      per tenant, how much of its quota it uses. Triggers of the database count it, so
//                 it is right whatever program writes.
//
// No answer, no error and no amount of work depends on what other tenants have. Every statement
// begins its search at the tenant. So an unknown name and another tenant's name take the same steps
// down the same index and give the same NOT_FOUND. (Writers wait for each other, whatever they
// write.)
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calibration/profiles/profile_store.h"
#include "calibration/profiles/store/change_feed.h"
#include "calibration/profiles/store/quarantine.h"
#include "calibration/profiles/store/sql/sql_database.h"
#include "calibration/profiles/store/sql/sql_versions.h"
#include "engine/base/mutex.h"

namespace eta {

class SqlProfileStore final : public ProfileStore {
 public:
  SqlProfileStore(std::unique_ptr<SqlDatabase> database, const ProfileStoreOptions& options);

  absl::StatusOr<ProfilePtr> Put(const Tenant& tenant, const PutProfile& put) override;
  absl::StatusOr<ProfilePtr> CheckPut(const Tenant& tenant, const PutProfile& put) const override;
  absl::StatusOr<ProfilePtr> Get(const Tenant& tenant, const std::string& name,
                                 const ProfileSelector& selector) const override;
  absl::StatusOr<ProfileList> List(const Tenant& tenant, const ProfilePage& page) const override;
  absl::StatusOr<ProfileList> ListVersions(const Tenant& tenant, const std::string& name,
                                           const ProfilePage& page) const override;
  absl::StatusOr<std::vector<ProfileAlias>> ListAliases(const Tenant& tenant,
                                                        const std::string& name) const override;
  absl::Status SetAlias(const Tenant& tenant, const PutAlias& put) override;
  absl::Status Promote(const Tenant& tenant, const PromoteProfile& promote) override;
  absl::Status DeleteVersion(const Tenant& tenant, const std::string& name,
                             int64_t version) override;
  absl::Status Delete(const Tenant& tenant, const std::string& name,
                      std::optional<int64_t> expected_version) override;
  Lease Watch(ProfileWatcher watcher) override;
  std::optional<ProfileUse> Use(const Tenant& tenant) const override;
  absl::Status Health() const override;

 private:
  absl::StatusOr<std::vector<SqlRow>> Query(const Tenant& tenant, const char* statement,
                                            const std::vector<SqlValue>& values) const;
  ProfileList Page(const Tenant& tenant, const std::string& listing,
                   const std::vector<SqlRow>& rows, const ProfilePage& page) const;
  absl::StatusOr<ProfilePtr> FindRequest(const Tenant& tenant, const PutProfile& put) const;
  // The outcome of a Put.
  struct Inserted {
    ProfilePtr stored;
    std::vector<int64_t> removed;
  };
  absl::StatusOr<SqlEnd> Insert(SqlSession& session, const Tenant& tenant, const PutProfile& put,
                                Inserted& inserted) const;
  absl::StatusOr<int64_t> Select(SqlSession& session, const Tenant& tenant, const std::string& name,
                                 const ProfileSelector& selector) const;
  // The versions that keep_versions leaves no room for, once `added` more are there.
  absl::StatusOr<SurplusVersions> Surplus(SqlSession& session, const Tenant& tenant,
                                          const std::string& name, const std::string& model,
                                          bool staged, int added) const;
  void TellRemoved(const Tenant& tenant, const std::string& name,
                   const std::vector<int64_t>& versions);
  void PollForChanges();
  absl::Status TellAll(SqlSession& session);
  absl::Status TellSince(SqlSession& session, int64_t revision);
  void NoteUses(bool all, const std::vector<SqlRow>& rows);

  ProfileQuota QuotaOf(const Tenant& tenant) const;
  ServedModel Served() const;

  const ProfileStoreOptions options_;
  const std::unique_ptr<SqlDatabase> database_;
  mutable Quarantine quarantine_;
  ChangeFeed feed_;
  std::optional<int64_t> seen_revision_;  // of the poll thread
  mutable Mutex mutex_;
  std::map<std::string, ProfileUse> uses_ GUARDED_BY(mutex_);  // by tenant
  // True: a tenant that is not in uses_ has stored nothing.
  bool uses_complete_ GUARDED_BY(mutex_) = false;
  PollThread poll_;  // last, so that it stops first
};

}  // namespace eta
