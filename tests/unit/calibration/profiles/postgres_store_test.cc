// What is PostgreSQL's own: row-level security, replicas, notifications.
#include <atomic>
#include <thread>

#include "calibration/profiles/store/open_profile_store.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/profiles/postgres_client.h"
#include "tests/testing/profiles/postgres_store_fixture.h"

namespace eta {
namespace {

using absl::StatusCode;

using PostgresStore = PostgresStoreFixture;

// Makes tables of today those of schema version 2.
constexpr char kPostgresBackToVersion2[] =
    "DROP INDEX eta_profiles_by_model;"
    " ALTER TABLE eta_profiles DROP COLUMN model_fingerprint, DROP COLUMN staged;"
    " ALTER TABLE eta_aliases DROP CONSTRAINT eta_aliases_pkey;"
    " ALTER TABLE eta_aliases DROP COLUMN model_fingerprint, ADD PRIMARY KEY (tenant, name, alias);"
    " UPDATE eta_store SET schema_version = 2";

TEST_F(PostgresStore, RowLevelSecurityHidesOtherTenants) {
  const auto store = Open();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  ASSERT_TRUE(store->Put(kOther, MakePut("legal", 2)).ok());
  ASSERT_TRUE(store->SetAlias(kAcme, {"legal", "stable", 1, {}}).ok());
  EXPECT_EQ(PostgresClient(server_->AdminUrl(url_))("SELECT COUNT(*) FROM eta_profiles"), "2");
  // The server's own role without a WHERE.
  PostgresClient client(url_);
  EXPECT_EQ(client("SELECT COUNT(*) FROM eta_profiles"), "0");
  EXPECT_EQ(client("SELECT COUNT(*) FROM eta_aliases"), "0");
  client("SET app.tenant = 'other'");
  EXPECT_EQ(client("SELECT string_agg(tenant, ',') FROM eta_profiles"), "other");
  EXPECT_EQ(client("SELECT COUNT(*) FROM eta_aliases"), "0");
  EXPECT_EQ(client("UPDATE eta_profiles SET tenant = 'acme'"), "42501");
  EXPECT_EQ(client("DELETE FROM eta_profiles WHERE tenant = 'acme' RETURNING 1"), "");
  EXPECT_EQ(PostgresClient(server_->AdminUrl(url_))("SELECT COUNT(*) FROM eta_profiles"), "2");
}

TEST_F(PostgresStore, DeletedVersionsAreNotWrittenAgain) {
  const auto store = Open();
  PostgresClient admin(server_->AdminUrl(url_));
  const auto writer_after_delete = [&] {
    EXPECT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
    EXPECT_TRUE(store->Delete(kAcme, "legal", std::nullopt).ok());
    return admin("SELECT xmin FROM eta_profiles WHERE version = 1");
  };
  const std::string writer = writer_after_delete();
  EXPECT_EQ(writer_after_delete(), writer);
}

TEST_F(PostgresStore, ReplicasMigrateAtOnceAndSeeEachOther) {
  std::vector<std::thread> threads;
  std::atomic<int> stored = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto store = OpenProfileStore(url_, StorePlace::FastOptions());
      if (!store.ok()) return;
      if ((*store)->Put(kAcme, MakePut("p" + std::to_string(i), 1)).ok()) ++stored;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stored, 4);
  EXPECT_EQ(Open()->List(kAcme, {})->profiles.size(), 4u);
}

TEST_F(PostgresStore, NewerSchemaAndMissingRightsAreRefused) {
  ASSERT_NE(Open(), nullptr);
  PostgresClient admin(server_->AdminUrl(url_));
  admin("UPDATE eta_store SET schema_version = 4");
  EXPECT_EQ(Reason(OpenProfileStore(url_).status()), "STORE_SCHEMA_TOO_NEW");
  admin("UPDATE eta_store SET schema_version = 3");
  admin("REVOKE ALL ON eta_store FROM eta");
  EXPECT_EQ(Reason(OpenProfileStore(url_).status()), "STORE_PERMISSIONS");
  EXPECT_EQ(OpenProfileStore("postgresql://host:port/x?nonsense=1").status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(PostgresStore, TablesOfTheFirstVersionAreMigratedUnderAReplicaThatWrites) {
  const auto old = Open();  // as one that made its connections before
  ASSERT_TRUE(old->Put(kAcme, MakePut("legal", 1)).ok());
  ASSERT_TRUE(old->Put(kAcme, MakePut("gone", 2)).ok());
  ASSERT_TRUE(old->Delete(kAcme, "gone", std::nullopt).ok());
  PostgresClient admin(server_->AdminUrl(url_));
  ASSERT_EQ(admin(kPostgresBackToVersion2), "");
  ASSERT_EQ(admin("DROP TRIGGER eta_uses ON eta_profiles; DROP FUNCTION eta_count_use;"
                  " DROP TABLE eta_uses; UPDATE eta_store SET schema_version = 1"),
            "");
  ProfileStoreOptions options = StorePlace::FastOptions();
  options.quota.versions = 2;
  const auto store = Open(options);
  ASSERT_TRUE(Eventually([&] { return store->Use(kAcme).has_value(); }));
  EXPECT_EQ(store->Use(kAcme)->versions, 1);
  EXPECT_EQ(store->Use(kAcme)->versions_ever, 2);
  ASSERT_TRUE(old->Put(kAcme, MakePut("legal", 3)).ok());
  EXPECT_TRUE(Eventually([&] { return store->Use(kAcme)->versions == 2; }));
  EXPECT_EQ(Reason(store->Put(kAcme, MakePut("more", 4)).status()), "PROFILE_QUOTA");
  EXPECT_EQ(admin("SELECT relforcerowsecurity FROM pg_class WHERE relname = 'eta_profiles'"), "t");
}

TEST_F(PostgresStore, TablesOfTheSecondVersionAreMigratedAndTheirRowsCountForEveryModel) {
  const std::string a(64, 'a'), b(64, 'b');
  {
    const auto store = Open();
    for (uint32_t i = 1; i <= 4; ++i) {
      PutProfile put = MakePut("legal", i);
      if (i % 2 == 0) put.content.model_fingerprint = b;
      ASSERT_TRUE(store->Put(kAcme, put).ok());
    }
    ASSERT_TRUE(store->Put(kOther, MakePut("legal", 1)).ok());
    ASSERT_TRUE(store->SetAlias(kAcme, {"legal", "stable", 4, {}}).ok());
  }
  PostgresClient admin(server_->AdminUrl(url_));
  ASSERT_EQ(admin(kPostgresBackToVersion2), "");
  const auto serving = [this](const std::string& model) {
    ProfileStoreOptions options = StorePlace::FastOptions();
    options.served_model = [model] { return ServedModel{.fingerprint = model}; };
    return Open(options);
  };
  const auto for_a = serving(a), for_b = serving(b);
  EXPECT_EQ((*for_a->Get(kAcme, "legal", Newest()))->version, 4);
  EXPECT_EQ((*for_b->Get(kAcme, "legal", Newest()))->version, 4);
  EXPECT_TRUE(for_a->Get(kOther, "legal", Newest()).ok()) << "every tenant's rows";
  const std::string stable = "stable";
  EXPECT_EQ((*for_b->Get(kAcme, "legal", stable))->version, 4);
  EXPECT_EQ((*for_a->Get(kAcme, "legal", stable))->version, 4);
  EXPECT_EQ(admin("SELECT string_agg(relname, ',' ORDER BY relname) FROM pg_class"
                  " WHERE relforcerowsecurity"),
            "eta_aliases,eta_profiles");
}

TEST_F(PostgresStore, NotificationsNeedNoPoll) {
  ProfileStoreOptions options = StorePlace::FastOptions();
  options.poll_interval = std::chrono::milliseconds(1500);
  const auto writer = Open();
  ASSERT_TRUE(writer->Put(kAcme, MakePut("legal", 1)).ok());
  const auto store = OpenProfileStore(url_, options).value();
  std::atomic<int> told = 0;
  const auto watch = store->Watch([&](const ProfileChange&) { ++told; });
  // The first look listens from here on.
  ASSERT_TRUE(Eventually([&] { return told > 0; }));
  // Each comes as soon as the one before it was told, so while that look ends. If each waited for
  // its poll, all would take twice the limit.
  constexpr int kPuts = 10;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kPuts; ++i) {
    told = 0;
    ASSERT_TRUE(writer->Put(kAcme, MakePut("legal", 2 + i)).ok());
    ASSERT_TRUE(Eventually([&] { return told > 0; })) << i;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPuts * options.poll_interval / 2);
}

TEST_F(PostgresStore, ALockedStoreIsBusyForWritersOnly) {
  ProfileStoreOptions options = StorePlace::FastOptions();
  options.busy_timeout = std::chrono::milliseconds(50);
  const auto store = Open(options);
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  PostgresClient other(url_);
  other("BEGIN; SELECT * FROM eta_store FOR UPDATE");
  EXPECT_EQ(Reason(store->Put(kAcme, MakePut("legal", 2)).status()), "STORE_BUSY");
  EXPECT_TRUE(store->Get(kAcme, "legal", Newest()).ok());
  other("ROLLBACK");
  EXPECT_TRUE(store->Put(kAcme, MakePut("legal", 2)).ok());
}

}  // namespace
}  // namespace eta
