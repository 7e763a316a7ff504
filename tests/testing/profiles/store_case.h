// The three kinds of profile store, for tests that hold for all of them.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "calibration/profiles/profile_store.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta {

enum class StoreKind { kSqlite, kPostgres, kDirectory };

// Names for test suites over kinds.
inline std::string StoreKindName(const ::testing::TestParamInfo<StoreKind>& tested) {
  if (tested.param == StoreKind::kDirectory) return "Directory";
  return tested.param == StoreKind::kSqlite ? "Sqlite" : "Postgres";
}

// An empty place for a store. Several stores may be open on it at once, like several processes.
class StorePlace {
 public:
  explicit StorePlace(StoreKind kind);

  // The reason why there is no such place here; empty if there is one.
  const std::string& missing() const { return missing_; }
  const std::string& url() const { return url_; }
  const std::string& path() const { return folder_.path(); }

  std::unique_ptr<ProfileStore> Open(ProfileStoreOptions options = FastOptions()) const;
  // Puts a profile there as the owner of the place does: through a store, or as a file.
  void Seed(const std::string& tenant, const std::string& name, int64_t version,
            const ProfileContent& content) const;
  // Writes a file of a folder of profiles.
  void Write(const std::string& name, std::string_view contents) const {
    folder_.Write(name, contents);
  }
  void SeedAlias(const std::string& tenant, const std::string& name, const std::string& alias,
                 int64_t version) const;

  static ProfileStoreOptions FastOptions() {
    return {.quota = {},
            .quota_of = nullptr,
            .poll_interval = std::chrono::milliseconds(20),
            .busy_timeout = std::chrono::seconds(5)};
  }

 private:
  const StoreKind kind_;
  TempFolder folder_{FastParent()};
  std::string url_;
  std::string missing_;
};

}  // namespace eta
