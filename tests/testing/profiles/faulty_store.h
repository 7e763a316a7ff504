// A profile store around a real one in a folder of its own. It fails, waits and reports changes
// when the test says so. Thread-safe.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calibration/profiles/profile_store.h"
#include "calibration/profiles/store/open_profile_store.h"
#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"

namespace eta::testing {

class FaultyStore final : public ProfileStore {
 public:
  explicit FaultyStore(const ProfileStoreOptions& options = {}) {
    auto store = OpenProfileStore(folder_.path() + "/profiles.db", options);
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  // The store beneath, used like another process.
  ProfileStore& others() { return *store_; }

  // Makes every call fail with `status`, until Fail(OK).
  void Fail(absl::Status status) {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(status);
  }
  // Its health from here on, whatever it does.
  void SetHealth(absl::Status health) {
    const std::lock_guard lock(mutex_);
    health_ = std::move(health);
  }
  // Calls wait until Release.
  void Block() {
    const std::lock_guard lock(mutex_);
    blocked_ = true;
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    blocked_ = false;
    changed_.notify_all();
  }
  // The number of calls that wait now.
  int waiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }
  // The number of calls of any kind for a tenant so far.
  int calls(const std::string& tenant) const {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(tenant);
    return found == calls_.end() ? 0 : found->second;
  }
  // The number of Get calls so far.
  int reads() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(readers_.size());
  }
  // The tenants of the Get calls, in order.
  std::vector<std::string> readers() const {
    const std::lock_guard lock(mutex_);
    return readers_;
  }
  // Reports this change to the watchers. They are told nothing else but what this object changed.
  void Tell(const ProfileChange& change) {
    std::vector<ProfileWatcher> watchers;
    {
      const std::lock_guard lock(mutex_);
      watchers = watchers_;
    }
    for (const ProfileWatcher& watcher : watchers) watcher(change);
  }

  absl::StatusOr<ProfilePtr> Put(const Tenant& tenant, const PutProfile& put) override {
    if (absl::Status s = Pass(tenant); !s.ok()) return s;
    return store_->Put(tenant, put);
  }
  absl::StatusOr<ProfilePtr> CheckPut(const Tenant& tenant, const PutProfile& put) const override {
    if (absl::Status s = Pass(tenant); !s.ok()) return s;
    return store_->CheckPut(tenant, put);
  }
  absl::StatusOr<ProfilePtr> Get(const Tenant& tenant, const std::string& name,
                                 const ProfileSelector& selector) const override {
    {
      const std::lock_guard lock(mutex_);
      readers_.push_back(tenant.id());
    }
    if (absl::Status s = Pass(tenant); !s.ok()) return s;
    return store_->Get(tenant, name, selector);
  }
  absl::StatusOr<ProfileList> List(const Tenant& tenant, const ProfilePage& page) const override {
    if (absl::Status s = Pass(tenant); !s.ok()) return s;
    return store_->List(tenant, page);
  }
  absl::StatusOr<ProfileList> ListVersions(const Tenant& tenant, const std::string& name,
                                           const ProfilePage& page) const override {
    if (absl::Status s = Pass(tenant); !s.ok()) return s;
    return store_->ListVersions(tenant, name, page);
  }
  absl::StatusOr<std::vector<ProfileAlias>> ListAliases(const Tenant& tenant,
                                                        const std::string& name) const override {
    if (absl::Status s = Pass(tenant); !s.ok()) return s;
    return store_->ListAliases(tenant, name);
  }
  absl::Status SetAlias(const Tenant& tenant, const PutAlias& put) override {
    if (absl::Status s = Pass(tenant); !s.ok()) return s;
    return store_->SetAlias(tenant, put);
  }
  absl::Status Promote(const Tenant& tenant, const PromoteProfile& promote) override {
    if (absl::Status s = Pass(tenant); !s.ok()) return s;
    return store_->Promote(tenant, promote);
  }
  absl::Status DeleteVersion(const Tenant& tenant, const std::string& name,
                             int64_t version) override {
    if (absl::Status s = Pass(tenant); !s.ok()) return s;
    return store_->DeleteVersion(tenant, name, version);
  }
  absl::Status Delete(const Tenant& tenant, const std::string& name,
                      std::optional<int64_t> expected_version) override {
    if (absl::Status s = Pass(tenant); !s.ok()) return s;
    return store_->Delete(tenant, name, expected_version);
  }
  Lease Watch(ProfileWatcher watcher) override {
    const std::lock_guard lock(mutex_);
    watchers_.push_back(std::move(watcher));
    return Lease([this] {
      const std::lock_guard ending(mutex_);
      watchers_.clear();
    });
  }
  std::optional<ProfileUse> Use(const Tenant& tenant) const override { return store_->Use(tenant); }
  absl::Status Health() const override {
    const std::lock_guard lock(mutex_);
    return health_ ? *health_ : store_->Health();
  }

 private:
  absl::Status Pass(const Tenant& tenant) const {
    std::unique_lock lock(mutex_);
    ++calls_[tenant.id()];
    ++waiting_;
    changed_.wait(lock, [this] { return !blocked_; });
    --waiting_;
    return failure_;
  }

  const TempFolder folder_;
  std::unique_ptr<ProfileStore> store_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  // Guarded by mutex_:
  std::vector<ProfileWatcher> watchers_;
  absl::Status failure_;
  std::optional<absl::Status> health_;
  bool blocked_ = false;
  mutable std::map<std::string, int> calls_;
  mutable int waiting_ = 0;
  mutable std::vector<std::string> readers_;
};

}  // namespace eta::testing
