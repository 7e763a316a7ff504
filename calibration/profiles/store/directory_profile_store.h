// Profiles from a folder that others write, for example a mounted ConfigMap. Read only, reloaded as
// a whole.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calibration/profiles/profile_store.h"
#include "calibration/profiles/store/change_feed.h"
#include "calibration/profiles/store/profile_folder.h"
#include "engine/base/mutex.h"

namespace eta {

class DirectoryProfileStore final : public ProfileStore {
 public:
  // Fails if the folder's first contents are bad. If later contents are bad, the last good set
  // stays in use.
  static absl::StatusOr<std::unique_ptr<DirectoryProfileStore>> Open(
      const std::string& path, const ProfileStoreOptions& options);

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
  std::optional<ProfileUse> Use(const Tenant& /*tenant*/) const override { return std::nullopt; }
  // The error of the latest contents if they were refused.
  absl::Status Health() const override;

 private:
  using Set = std::shared_ptr<const FolderProfiles>;

  DirectoryProfileStore(std::string path, std::string stamp, FolderProfiles profiles,
                        const ProfileStoreOptions& options);
  Set Current() const;
  ServedModel Served() const;
  void Reload();

  const std::string path_;
  const std::function<ServedModel()> served_model_;
  mutable Mutex mutex_;
  Set profiles_ GUARDED_BY(mutex_);
  absl::Status health_ GUARDED_BY(mutex_);
  ChangeFeed feed_;
  // Of the poll thread:
  std::optional<std::string> stamp_;  // of the contents last judged; absent: read at the next poll
  Set told_;                          // what the watchers know
  PollThread poll_;                   // last, so that it stops first
};

}  // namespace eta
