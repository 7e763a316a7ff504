#include "tests/testing/profiles/store_case.h"

#include <filesystem>

#include "calibration/profiles/profile_json.h"
#include "calibration/profiles/store/open_profile_store.h"
#include "tests/testing/profiles/postgres_server.h"

namespace eta {

StorePlace::StorePlace(StoreKind kind) : kind_(kind) {
  if (kind == StoreKind::kSqlite) url_ = "sqlite:" + folder_.path() + "/profiles.db";
  if (kind == StoreKind::kDirectory) url_ = "dir:" + folder_.path();
  if (kind != StoreKind::kPostgres) return;
  PostgresServer* server = PostgresServer::Get();
  if (server == nullptr) {
    missing_ = PostgresServer::MissingReason();
  } else {
    url_ = server->NewDatabase();
  }
}

std::unique_ptr<ProfileStore> StorePlace::Open(ProfileStoreOptions options) const {
  auto store = OpenProfileStore(url_, options);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

void StorePlace::Seed(const std::string& tenant, const std::string& name, int64_t version,
                      const ProfileContent& content) const {
  if (kind_ == StoreKind::kDirectory) {
    std::filesystem::create_directories(folder_.path() + "/" + tenant);
    const auto json =
        ProfileToJson({.name = name, .version = version, .create_time_us = 1, .content = content})
            .value();
    folder_.Write(tenant + "/" + name + "-" + std::to_string(version) + ".json", json);
    return;
  }
  PutProfile put = MakePut(name, 0, version - 1);
  put.content = content;
  ASSERT_TRUE(Open()->Put(TenantOf(tenant), put).ok());
}

void StorePlace::SeedAlias(const std::string& tenant, const std::string& name,
                           const std::string& alias, int64_t version) const {
  if (kind_ == StoreKind::kDirectory) {
    folder_.Write(tenant + "/aliases.json",
                  "{\"" + name + "\": {\"" + alias + "\": " + std::to_string(version) + "}}");
    return;
  }
  const PutAlias put{.name = name, .alias = alias, .version = version, .expected_version = {}};
  ASSERT_TRUE(Open()->SetAlias(TenantOf(tenant), put).ok());
}

}  // namespace eta
