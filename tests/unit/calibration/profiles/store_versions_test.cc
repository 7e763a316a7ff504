// Single versions: staged, promoted, deleted, and the oldest of many that go by themselves.
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/profiles/store_case.h"

namespace eta {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;

PutProfile Staged(uint32_t seed) {
  PutProfile put = MakePut("legal", seed);
  put.stage = true;
  return put;
}

class StagedVersionTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  StagedVersionTest() : place_(GetParam()) {}
  void SetUp() override {
    if (!place_.missing().empty()) GTEST_SKIP() << place_.missing();
    store_ = place_.Open();
  }

  int64_t Put(uint32_t seed) { return Version(store_->Put(kAcme, MakePut("legal", seed))); }
  int64_t Stage(uint32_t seed) { return Version(store_->Put(kAcme, Staged(seed))); }
  static int64_t Version(const absl::StatusOr<ProfilePtr>& stored) {
    EXPECT_TRUE(stored.ok()) << stored.status();
    return stored.ok() ? (*stored)->version : 0;
  }
  absl::Status Promote(int64_t version, std::optional<int64_t> expected = std::nullopt) {
    return store_->Promote(kAcme,
                           {.name = "legal", .version = version, .expected_version = expected});
  }
  int64_t NewestVersion() { return Version(store_->Get(kAcme, "legal", Newest())); }
  // Newest first.
  std::vector<int64_t> Versions() {
    std::vector<int64_t> versions;
    const auto list = store_->ListVersions(kAcme, "legal", {});
    EXPECT_TRUE(list.ok()) << list.status();
    for (const ProfileSummary& summary : list->profiles) versions.push_back(summary.version);
    return versions;
  }

  const StorePlace place_;
  std::unique_ptr<ProfileStore> store_;
};
class KeepVersionsTest : public StagedVersionTest {
 protected:
  void Keep(int32_t versions, const ProfileQuota& quota = {}) {
    ProfileStoreOptions options = StorePlace::FastOptions();
    options.quota = quota;
    options.keep_versions = versions;
    options.on_removed = [this](const Tenant& tenant, const std::string& name,
                                const std::vector<int64_t>& removed) {
      EXPECT_EQ(tenant, kAcme);
      EXPECT_EQ(name, "legal");
      removed_.insert(removed_.end(), removed.begin(), removed.end());
    };
    store_ = place_.Open(options);
  }

  std::vector<int64_t> removed_;
};

INSTANTIATE_TEST_SUITE_P(Stores, StagedVersionTest,
                         ::testing::Values(StoreKind::kSqlite, StoreKind::kPostgres),
                         StoreKindName);
INSTANTIATE_TEST_SUITE_P(Stores, KeepVersionsTest,
                         ::testing::Values(StoreKind::kSqlite, StoreKind::kPostgres),
                         StoreKindName);

TEST_P(StagedVersionTest, AStagedVersionIsNotTheNewestUntilItIsPromoted) {
  ASSERT_EQ(Put(1), 1);
  ASSERT_EQ(Stage(2), 2);
  EXPECT_EQ(NewestVersion(), 1);
  EXPECT_EQ(store_->List(kAcme, {})->profiles[0].version, 1);
  const auto staged = store_->Get(kAcme, "legal", int64_t{2});
  ASSERT_TRUE(staged.ok()) << "by its number";
  EXPECT_TRUE((*staged)->staged);
  EXPECT_EQ((*staged)->content, MakeContent(2));
  ASSERT_TRUE(store_->SetAlias(kAcme, {"legal", "canary", 2, 0}).ok());
  EXPECT_EQ(Version(store_->Get(kAcme, "legal", std::string("canary"))), 2);
  EXPECT_TRUE(store_->ListVersions(kAcme, "legal", {})->profiles[0].staged);
  EXPECT_EQ(Reason(store_->Put(kAcme, MakePut("legal", 3, 2)).status()), "VERSION_MISMATCH");

  ASSERT_TRUE(Promote(2, 1).ok());
  EXPECT_EQ(NewestVersion(), 2);
  EXPECT_FALSE((*place_.Open()->Get(kAcme, "legal", int64_t{2}))->staged) << "for every process";
}

// bad input: Profiles | PromoteProfile, DeleteProfileVersion: version 0, negative, absent, not
//   there, not newer, used by an alias | INVALID_ARGUMENT, NOT_FOUND, ABORTED, VERSION_HAS_ALIAS;
//   nothing is changed | BadProfileTest.PromotionsAndDeletionsThatMakeNoSenseChangeNothing
TEST_P(StagedVersionTest, APromotionIsConditionalAndMayBeRepeated) {
  ASSERT_EQ(Put(1), 1);
  ASSERT_EQ(Stage(2), 2);
  ASSERT_EQ(Stage(3), 3);
  EXPECT_EQ(Reason(Promote(2, 0)), "VERSION_MISMATCH");
  EXPECT_EQ(Reason(Promote(2, 3)), "VERSION_MISMATCH");
  EXPECT_EQ(NewestVersion(), 1);
  ASSERT_TRUE(Promote(3, 1).ok());
  EXPECT_TRUE(Promote(3, 1).ok()) << "a repetition";
  const absl::Status behind = Promote(2, 3);
  EXPECT_EQ(behind.code(), StatusCode::kAborted) << "it would not be the newest";
  EXPECT_EQ(Reason(behind), "VERSION_MISMATCH");
  EXPECT_EQ(Reason(Promote(2)), "VERSION_MISMATCH");
  EXPECT_EQ(NewestVersion(), 3);

  EXPECT_EQ(Promote(4).code(), StatusCode::kNotFound);
  EXPECT_EQ(store_->Promote(kOther, {.name = "legal", .version = 2}).code(), StatusCode::kNotFound);
  EXPECT_EQ(GetErrorDetail(Promote(0)).field, "version");
  EXPECT_EQ(GetErrorDetail(Promote(2, -1)).field, "expected_version");
  EXPECT_EQ(GetErrorDetail(store_->Promote(kAcme, {.name = "../x", .version = 1})).field, "name");
}

TEST_P(StagedVersionTest, ANameWithStagedVersionsOnlyHasNoNewest) {
  ASSERT_EQ(Stage(1), 1);
  EXPECT_EQ(Reason(store_->Get(kAcme, "legal", Newest()).status()), "PROFILE_NOT_FOUND");
  const auto list = store_->List(kAcme, {});
  ASSERT_EQ(list->profiles.size(), 1u) << "it is there to be found";
  EXPECT_TRUE(list->profiles[0].staged);
  EXPECT_EQ((*store_->CheckPut(kAcme, MakePut("legal", 2, 0))), nullptr);
  ASSERT_TRUE(Promote(1, 0).ok());
  EXPECT_EQ(NewestVersion(), 1);
}

TEST_P(StagedVersionTest, ARepeatedRequestStagesOnce) {
  PutProfile put = Staged(1);
  put.request_id = "once";
  put.payload_digest = std::string(64, '1');
  ASSERT_EQ(Version(store_->Put(kAcme, put)), 1);
  const auto again = store_->Put(kAcme, put);
  EXPECT_EQ(Version(again), 1);
  EXPECT_TRUE((*again)->staged);
  ASSERT_TRUE(Promote(1).ok());
  EXPECT_FALSE((*store_->Put(kAcme, put))->staged) << "as it stands now";
  EXPECT_THAT(Versions(), ElementsAre(1));
}

// Two stores on one place, as two processes.
TEST_P(StagedVersionTest, OfTwoPromotionsFromOneVersionOneIsDone) {
  const auto other = place_.Open();
  ASSERT_EQ(Put(0), 1);
  for (int64_t newest = 1; newest < 20;) {
    const int64_t staged = Stage(1);
    ASSERT_EQ(Stage(2), staged + 1);
    std::array<absl::Status, 2> results;
    std::thread thread([&] {
      results[1] = other->Promote(
          kAcme, {.name = "legal", .version = staged + 1, .expected_version = newest});
    });
    results[0] = Promote(staged, newest);
    thread.join();
    ASSERT_NE(results[0].ok(), results[1].ok()) << results[0] << results[1];
    newest = NewestVersion();
    EXPECT_EQ(newest, results[0].ok() ? staged : staged + 1);
  }
}

TEST_P(StagedVersionTest, AVersionThatAnAliasNamesIsNotDeleted) {
  for (const uint32_t seed : {1u, 2u, 3u}) Put(seed);
  ASSERT_TRUE(store_->SetAlias(kAcme, {"legal", "stable", 3, 0}).ok());
  const absl::Status named = store_->DeleteVersion(kAcme, "legal", 3);
  EXPECT_THAT(named, FailsFor(StatusCode::kFailedPrecondition, "VERSION_HAS_ALIAS"));
  EXPECT_EQ(GetErrorDetail(named).metadata["alias"], "stable");
  EXPECT_THAT(Versions(), ElementsAre(3, 2, 1));
  ASSERT_TRUE(store_->SetAlias(kAcme, {"legal", "stable", 1, 3}).ok());
  EXPECT_TRUE(store_->DeleteVersion(kAcme, "legal", 3).ok());
  EXPECT_THAT(Versions(), ElementsAre(2, 1));
}

TEST_P(StagedVersionTest, ADeletedVersionIsGoneAndItsNumberIsNotUsedAgain) {
  PutProfile first = MakePut("legal", 1);
  first.request_id = "once";
  first.payload_digest = std::string(64, '1');
  ASSERT_EQ(Version(store_->Put(kAcme, first)), 1);
  ASSERT_EQ(Put(2), 2);
  ASSERT_EQ(Stage(3), 3);
  ASSERT_TRUE(store_->DeleteVersion(kAcme, "legal", 3).ok()) << "a staged one too";
  ASSERT_TRUE(store_->DeleteVersion(kAcme, "legal", 2).ok());
  EXPECT_EQ(NewestVersion(), 1) << "the next lower one";
  EXPECT_EQ(Reason(store_->Get(kAcme, "legal", int64_t{2}).status()), "PROFILE_NOT_FOUND");
  EXPECT_EQ(store_->DeleteVersion(kAcme, "legal", 2).code(), StatusCode::kNotFound);
  EXPECT_EQ(store_->DeleteVersion(kOther, "legal", 1).code(), StatusCode::kNotFound);
  EXPECT_EQ(store_->SetAlias(kAcme, {"legal", "stable", 2, {}}).code(), StatusCode::kNotFound);
  EXPECT_EQ(Promote(3).code(), StatusCode::kNotFound);
  EXPECT_EQ(GetErrorDetail(store_->DeleteVersion(kAcme, "legal", 0)).field, "version");
  EXPECT_EQ(GetErrorDetail(store_->DeleteVersion(kAcme, "", 1)).field, "name");
  ASSERT_EQ(Put(4), 4);
  ASSERT_TRUE(store_->DeleteVersion(kAcme, "legal", 4).ok());
  ASSERT_TRUE(store_->DeleteVersion(kAcme, "legal", 1).ok());
  EXPECT_TRUE(store_->List(kAcme, {})->profiles.empty()) << "the last one takes the name";
  EXPECT_EQ(store_->ListVersions(kAcme, "legal", {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store_->Put(kAcme, first).status().code(), StatusCode::kNotFound)
      << "a late repetition does not bring it back";
  const ProfileUse want{.versions = 0, .bytes = 0, .versions_ever = 4};
  EXPECT_TRUE(Eventually([&] { return store_->Use(kAcme) == want; }));
}

TEST_P(KeepVersionsTest, ANewVersionDeletesTheOldestBeyondThoseThatAreKept) {
  Keep(2);
  ASSERT_EQ(Put(1), 1);
  ASSERT_EQ(Put(2), 2);
  ASSERT_TRUE(store_->SetAlias(kAcme, {"legal", "stable", 1, 0}).ok());
  ASSERT_EQ(Put(3), 3);
  EXPECT_THAT(Versions(), ElementsAre(3, 2, 1)) << "what an alias names stays and does not count";
  EXPECT_THAT(removed_, ElementsAre());
  ASSERT_EQ(Put(4), 4);
  EXPECT_THAT(Versions(), ElementsAre(4, 3, 1));
  EXPECT_THAT(removed_, ElementsAre(2));
  ASSERT_TRUE(store_->SetAlias(kAcme, {"legal", "stable", 4, 1}).ok());
  ASSERT_EQ(Put(5), 5);
  EXPECT_THAT(Versions(), ElementsAre(5, 4, 3));
  EXPECT_THAT(removed_, ElementsAre(2, 1));
}

TEST_P(KeepVersionsTest, StagedVersionsAndOtherModelsAreCountedByThemselves) {
  Keep(1);
  ASSERT_EQ(Put(1), 1);
  PutProfile foreign = MakePut("legal", 2);
  foreign.content.model_fingerprint = std::string(64, 'c');
  ASSERT_EQ(Version(store_->Put(kAcme, foreign)), 2);
  ASSERT_EQ(Stage(3), 3);
  EXPECT_THAT(Versions(), ElementsAre(3, 2, 1));
  ASSERT_EQ(Stage(4), 4);
  EXPECT_THAT(Versions(), ElementsAre(4, 2, 1)) << "the older of the staged ones";
  ASSERT_TRUE(Promote(4).ok());
  EXPECT_THAT(Versions(), ElementsAre(4, 2)) << "a promotion is a new version too";
  EXPECT_THAT(removed_, ElementsAre(3, 1));
  EXPECT_EQ((*store_->Get(kAcme, "legal", int64_t{2}))->content, foreign.content);
}

TEST_P(KeepVersionsTest, WhatGoesMakesRoomForWhatComes) {
  Keep(2, {.versions = 2, .bytes = 1 << 20, .versions_ever = 100});
  for (uint32_t i = 1; i <= 5; ++i) {
    EXPECT_TRUE(store_->CheckPut(kAcme, MakePut("legal", i)).ok());
    ASSERT_EQ(Put(i), int64_t{i});
  }
  EXPECT_THAT(Versions(), ElementsAre(5, 4));
  ASSERT_TRUE(store_->SetAlias(kAcme, {"legal", "a", 4, 0}).ok());
  ASSERT_TRUE(store_->SetAlias(kAcme, {"legal", "b", 5, 0}).ok());
  EXPECT_EQ(Reason(store_->CheckPut(kAcme, MakePut("legal", 6)).status()), "PROFILE_QUOTA");
  EXPECT_EQ(Reason(store_->Put(kAcme, MakePut("legal", 6)).status()), "PROFILE_QUOTA");
  EXPECT_THAT(Versions(), ElementsAre(5, 4)) << "a refused call deletes nothing";
}

}  // namespace
}  // namespace eta
