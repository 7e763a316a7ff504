// What holds for every profile store: readers for all three kinds, writers for the two that write.
#include "calibration/profiles/profile_store.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/profiles/store_case.h"

namespace eta {
namespace {

using absl::StatusCode;

class StoreTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  StoreTest() : place_(GetParam()) {}
  void SetUp() override {
    if (!place_.missing().empty()) GTEST_SKIP() << place_.missing();
  }

  StorePlace place_;
};
class ReadStoreTest : public StoreTest {};
class WriteStoreTest : public StoreTest {};

INSTANTIATE_TEST_SUITE_P(Stores, ReadStoreTest,
                         ::testing::Values(StoreKind::kSqlite, StoreKind::kPostgres,
                                           StoreKind::kDirectory),
                         StoreKindName);
INSTANTIATE_TEST_SUITE_P(Stores, WriteStoreTest,
                         ::testing::Values(StoreKind::kSqlite, StoreKind::kPostgres),
                         StoreKindName);

TEST_P(ReadStoreTest, GetByVersionNewestAndAlias) {
  const ProfileContent first = MakeContent(1), second = MakeContent(2);
  place_.Seed("acme", "legal", 1, first);
  place_.Seed("acme", "legal", 2, second);
  place_.SeedAlias("acme", "legal", "stable", 1);
  const auto store = place_.Open();
  const auto newest = store->Get(kAcme, "legal", Newest()).value();
  EXPECT_EQ(newest->version, 2);
  EXPECT_EQ(newest->content, second);
  EXPECT_EQ(newest->tenant, kAcme);
  EXPECT_EQ((*store->Get(kAcme, "legal", int64_t{1}))->content, first);
  EXPECT_EQ((*store->Get(kAcme, "legal", std::string("stable")))->version, 1);
  const auto aliases = store->ListAliases(kAcme, "legal").value();
  ASSERT_EQ(aliases.size(), 1u);
  EXPECT_EQ(aliases.front().alias, "stable");
  EXPECT_EQ(aliases.front().version, 1);
  EXPECT_TRUE(store->Health().ok());
}

TEST_P(ReadStoreTest, UnknownAndForeignAreTheSameError) {
  place_.Seed("acme", "legal", 1, MakeContent(1));
  place_.SeedAlias("acme", "legal", "stable", 1);
  const auto store = place_.Open();
  const absl::Status unknown = store->Get(kAcme, "missing", Newest()).status();
  EXPECT_THAT(unknown, FailsFor(StatusCode::kNotFound, "PROFILE_NOT_FOUND"));
  const auto expect_same = [&](const absl::Status& status) {
    EXPECT_EQ(status, unknown);
    EXPECT_EQ(status.ToString(), unknown.ToString());
  };
  expect_same(store->Get(kOther, "legal", Newest()).status());
  expect_same(store->Get(kOther, "legal", int64_t{1}).status());
  expect_same(store->Get(kOther, "legal", std::string("stable")).status());
  expect_same(store->Get(kAcme, "legal", int64_t{2}).status());
  expect_same(store->Get(kAcme, "legal", std::string("absent")).status());
  expect_same(store->ListVersions(kOther, "legal", {}).status());
  EXPECT_TRUE(store->List(kOther, {})->profiles.empty());
  EXPECT_TRUE(store->ListAliases(kOther, "legal")->empty());
}

TEST_P(ReadStoreTest, TwoTenantsWithOneName) {
  place_.Seed("acme", "legal", 1, MakeContent(1));
  place_.Seed("other", "legal", 1, MakeContent(2));
  place_.Seed("other", "legal", 2, MakeContent(3));
  const auto store = place_.Open();
  EXPECT_EQ((*store->Get(kAcme, "legal", Newest()))->content, MakeContent(1));
  EXPECT_EQ((*store->Get(kOther, "legal", Newest()))->content, MakeContent(3));
  EXPECT_EQ(store->ListVersions(kAcme, "legal", {})->profiles.size(), 1u);
  EXPECT_EQ(store->ListVersions(kOther, "legal", {})->profiles.size(), 2u);
}

TEST_P(ReadStoreTest, Pages) {
  for (const char* name : {"b", "a-1", "c.x", "a", "a_2"}) {
    place_.Seed("acme", name, 1, MakeContent(1));
  }
  for (int64_t version = 2; version <= 5; ++version) {
    place_.Seed("acme", "b", version, MakeContent(static_cast<uint32_t>(version)));
  }
  place_.Seed("other", "z", 1, MakeContent(1));
  const auto store = place_.Open();
  std::vector<std::string> names;
  std::string token;
  do {
    const auto list = store->List(kAcme, {.size = 2, .token = token}).value();
    EXPECT_LE(list.profiles.size(), 2u);
    for (const ProfileSummary& profile : list.profiles) {
      names.push_back(profile.name + "@" + std::to_string(profile.version));
      EXPECT_GT(profile.bytes, 100);
    }
    token = list.next_token;
  } while (!token.empty());
  EXPECT_THAT(names, ::testing::ElementsAre("a@1", "a-1@1", "a_2@1", "b@5", "c.x@1"));

  std::vector<int64_t> versions;
  do {
    const auto list = store->ListVersions(kAcme, "b", {.size = 2, .token = token}).value();
    for (const ProfileSummary& profile : list.profiles) versions.push_back(profile.version);
    token = list.next_token;
  } while (!token.empty());
  EXPECT_THAT(versions, ::testing::ElementsAre(5, 4, 3, 2, 1));
  // A last page that is just full has no next one.
  EXPECT_EQ(store->ListVersions(kAcme, "b", {.size = 5, .token = ""})->next_token, "");
  EXPECT_EQ(store->List(kAcme, {.size = 5, .token = ""})->next_token, "");

  const std::string mine = store->List(kAcme, {.size = 1, .token = ""})->next_token;
  const auto bad = [](const auto& result) { return GetErrorDetail(result.status()).field; };
  EXPECT_EQ(bad(store->List(kOther, {.size = 1, .token = mine})), "page_token");
  EXPECT_EQ(bad(store->ListVersions(kAcme, "b", {.size = 1, .token = mine})), "page_token");
  for (const std::string& token_text : {mine + "A", mine.substr(1), std::string(1000, 'A'),
                                        std::string("!"), std::string("' OR 1=1")}) {
    EXPECT_EQ(bad(store->List(kAcme, {.size = 1, .token = token_text})), "page_token");
  }
  EXPECT_EQ(bad(store->List(kAcme, {.size = -1, .token = ""})), "page_size");
  EXPECT_EQ((ProfilePage{.size = 0}.rows()), ProfilePage::kUsual);
  EXPECT_EQ((ProfilePage{.size = 1001}.rows()), ProfilePage::kMost);
  for (const int32_t size : {0, 1001, std::numeric_limits<int32_t>::max()}) {
    EXPECT_TRUE(store->List(kAcme, {.size = size, .token = ""}).ok()) << size;
    EXPECT_EQ(store->ListVersions(kAcme, "b", {.size = size, .token = ""})->profiles.size(), 5u);
  }
}

// All of the names are in profile_record_test.cc.
TEST_P(ReadStoreTest, BadNamesAreInvalid) {
  const auto store = place_.Open();
  for (const char* bad : {"", "..", "a/b", "'; --", "A"}) {
    EXPECT_EQ(store->Get(kAcme, bad, Newest()).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(store->ListVersions(kAcme, bad, {}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(store->ListAliases(kAcme, bad).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(store->Get(kAcme, "a", int64_t{0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store->Get(kAcme, "a", std::string("1")).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(ReadStoreTest, AnotherProcessesChangeIsToldWithinASecond) {
  place_.Seed("acme", "legal", 1, MakeContent(1));
  ProfileStoreOptions defaults;  // with the interval that a server has
  const auto store = place_.Open(defaults);
  std::mutex mutex;
  std::set<std::string> told;
  const auto watch = store->Watch([&](const ProfileChange& change) {
    const std::lock_guard lock(mutex);
    told.insert(change.tenant ? change.tenant->id() + "/" + change.name : "everything");
  });
  const auto was_told = [&](const std::string& what) {
    const std::lock_guard lock(mutex);
    return told.contains(what);
  };
  // The first look at a database says "everything"; what is told after it comes from the change.
  if (GetParam() != StoreKind::kDirectory) {
    ASSERT_TRUE(Eventually([&] { return was_told("everything"); }));
  }
  {
    const std::lock_guard lock(mutex);
    told.clear();
  }
  place_.Seed("acme", "legal", 2, MakeContent(2));
  const auto changed = std::chrono::steady_clock::now();
  EXPECT_TRUE(Eventually([&] { return was_told("acme/legal"); }));
  EXPECT_LT(std::chrono::steady_clock::now() - changed, std::chrono::seconds(1));
  EXPECT_EQ((*store->Get(kAcme, "legal", Newest()))->version, 2);
}

// Where the host has no memory to tell it, for one.
TEST_P(ReadStoreTest, AChangeThatCouldNotBeToldIsToldAtTheNextLook) {
  place_.Seed("acme", "legal", 1, MakeContent(1));
  const auto store = place_.Open();
  if (GetParam() != StoreKind::kDirectory) {
    ASSERT_TRUE(Eventually([&] { return store->Use(kAcme).has_value(); })) << "the first look";
  }
  std::atomic<int> tries = 0;
  const auto watch = store->Watch([&](const ProfileChange& change) {
    if (change.tenant == kAcme && ++tries == 1) throw std::bad_alloc();
  });
  place_.Seed("acme", "legal", 2, MakeContent(2));
  EXPECT_TRUE(Eventually([&] { return tries >= 2; }));
  EXPECT_EQ((*store->Get(kAcme, "legal", Newest()))->version, 2);
}

TEST_P(WriteStoreTest, PutKeepsEveryBitAndSurvivesReopening) {
  PutProfile put = MakePut("legal", 1);
  put.content.thresholds = {-0.0f, 0.1f, 1e-45f, 3.4028235e38f, -1.0f / 3.0f, 0.0f};
  ProfilePtr stored;
  {
    const auto store = place_.Open();
    stored = store->Put(kAcme, put).value();
    EXPECT_EQ(stored->version, 1);
  }
  const auto read = place_.Open()->Get(kAcme, "legal", int64_t{1}).value();
  EXPECT_EQ(*read, *stored);
  EXPECT_EQ(0, memcmp(read->content.thresholds.data(), put.content.thresholds.data(),
                      put.content.thresholds.size() * sizeof(float)));
}

TEST_P(WriteStoreTest, ExpectedVersions) {
  const auto store = place_.Open();
  EXPECT_EQ(Reason(store->Put(kAcme, MakePut("legal", 1, 1)).status()), "VERSION_MISMATCH");
  EXPECT_EQ((*store->Put(kAcme, MakePut("legal", 1, 0)))->version, 1);
  const absl::Status taken = store->Put(kAcme, MakePut("legal", 2, 0)).status();
  EXPECT_THAT(taken, FailsFor(StatusCode::kAlreadyExists, "PROFILE_EXISTS"));
  EXPECT_EQ((*store->Put(kAcme, MakePut("legal", 2, 1)))->version, 2);
  const absl::Status stale = store->Put(kAcme, MakePut("legal", 3, 1)).status();
  EXPECT_EQ(stale.code(), StatusCode::kAborted);
  EXPECT_FALSE(GetErrorDetail(stale).retry_after.has_value()) << "it would fail again";
  EXPECT_EQ(GetErrorDetail(stale).metadata.at("present_version"), "2");
  EXPECT_EQ((*store->Put(kAcme, MakePut("legal", 3)))->version, 3);
  EXPECT_EQ((*store->Put(kOther, MakePut("legal", 3, 0)))->version, 1);
  EXPECT_EQ(store->Put(kAcme, MakePut("legal", 3, -1)).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_P(WriteStoreTest, RequestIdsAreIdempotent) {
  const auto store = place_.Open();
  PutProfile put = MakePut("legal", 1, 0);
  put.request_id = "calibrate-1";
  put.payload_digest = std::string(64, '1');
  const auto first = store->Put(kAcme, put).value();
  PutProfile again = put;
  again.content = MakeContent(99);  // a second run may differ in its last bits
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(*place_.Open()->Put(kAcme, again).value(), *first);
  }
  EXPECT_EQ(store->ListVersions(kAcme, "legal", {})->profiles.size(), 1u);
  again.payload_digest = std::string(64, '2');
  const absl::Status reused = store->Put(kAcme, again).status();
  EXPECT_THAT(reused, FailsFor(StatusCode::kAlreadyExists, "REQUEST_ID_REUSED"));
  PutProfile renamed = put;
  renamed.name = "medical";
  EXPECT_EQ(Reason(store->Put(kAcme, renamed).status()), "REQUEST_ID_REUSED");
  // Another tenant's ids are its own.
  EXPECT_TRUE(store->Put(kOther, again).ok());
  // A late replay does not bring a deleted profile back.
  ASSERT_TRUE(store->Delete(kAcme, "legal", 1).ok());
  EXPECT_EQ(store->Put(kAcme, put).status().code(), StatusCode::kNotFound);
}

TEST_P(WriteStoreTest, BadPutsWriteNothing) {
  const auto store = place_.Open();
  PutProfile put = MakePut("legal", 1);
  put.content.thresholds[0] = std::nanf("");
  EXPECT_EQ(GetErrorDetail(store->Put(kAcme, put).status()).field, "thresholds[0][0]");
  put = MakePut("'; DROP TABLE eta_profiles; --", 1);
  EXPECT_EQ(GetErrorDetail(store->Put(kAcme, put).status()).field, "name");
  put = MakePut("legal", 1);
  put.request_id = "x";
  EXPECT_EQ(GetErrorDetail(store->Put(kAcme, put).status()).field, "payload_digest");
  put.payload_digest = std::string(64, '1');
  for (const std::string& id : {std::string(65, 'x'), std::string("a b"), std::string("\n")}) {
    put.request_id = id;
    const absl::Status refused = store->Put(kAcme, put).status();
    EXPECT_EQ(GetErrorDetail(refused).field, "request_id");
    EXPECT_THAT(refused.message(), ::testing::HasSubstr("without spaces, since"))
        << "why, not only what";
  }
  EXPECT_TRUE(store->List(kAcme, {})->profiles.empty());
}

// Values are bound: what would be SQL is data, also where no validator stands before it.
// bad input: Profiles | SQL in a tenant's name | data: statements are bound
TEST_P(WriteStoreTest, SqlInATenantIsData) {
  const auto store = place_.Open();
  const Tenant hostile = TenantOf("a'||(SELECT'x');DROP/**/TABLE/**/eta_profiles;--");
  ASSERT_TRUE(store->Put(hostile, MakePut("legal", 1)).ok());
  EXPECT_EQ((*store->Get(hostile, "legal", Newest()))->tenant, hostile);
  EXPECT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  EXPECT_EQ(store->List(kAcme, {})->profiles.size(), 1u);
}

TEST_P(WriteStoreTest, CheckPutSaysWhatPutWould) {
  ProfileStoreOptions options = StorePlace::FastOptions();
  options.quota.versions = 2;
  const auto store = place_.Open(options);
  const auto expect_same = [&](const PutProfile& put) {
    const absl::Status checked = store->CheckPut(kAcme, put).status();
    EXPECT_EQ(checked.ToString(), store->Put(kAcme, put).status().ToString());
    EXPECT_FALSE(checked.ok());
  };
  PutProfile put = MakePut("legal", 1, 0);
  put.request_id = "r1";
  put.payload_digest = std::string(64, '1');
  EXPECT_EQ(store->CheckPut(kAcme, put).value(), nullptr);
  EXPECT_TRUE(store->List(kAcme, {})->profiles.empty());
  const auto stored = store->Put(kAcme, put).value();
  PutProfile without_content = put;
  without_content.content = {};
  EXPECT_EQ(**store->CheckPut(kAcme, without_content), *stored);
  EXPECT_EQ(*store->CheckPut(kOther, put), nullptr);
  put.payload_digest = std::string(64, '2');
  expect_same(put);                      // REQUEST_ID_REUSED
  expect_same(MakePut("legal", 1, 0));   // PROFILE_EXISTS
  expect_same(MakePut("legal", 1, 7));   // VERSION_MISMATCH
  expect_same(MakePut("Legal", 1));      // name
  expect_same(MakePut("legal", 1, -1));  // expected_version
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 2)).ok());
  expect_same(MakePut("legal", 3));  // PROFILE_QUOTA
  ASSERT_TRUE(store->Delete(kAcme, "legal", {}).ok());
  put.payload_digest = std::string(64, '1');
  expect_same(put);  // NOT_FOUND
}

TEST_P(WriteStoreTest, DeletedVersionsNeverComeBack) {
  const auto store = place_.Open();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 2)).ok());
  ASSERT_TRUE(store->Put(kOther, MakePut("legal", 3)).ok());
  ASSERT_TRUE(store->SetAlias(kAcme, {"legal", "stable", 1, 0}).ok());
  EXPECT_EQ(store->Delete(kAcme, "legal", 1).code(), StatusCode::kAborted);
  ASSERT_TRUE(store->Delete(kAcme, "legal", 2).ok());
  EXPECT_EQ(store->Delete(kAcme, "legal", std::nullopt).code(), StatusCode::kNotFound);
  EXPECT_EQ(store->Get(kAcme, "legal", Newest()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store->Get(kAcme, "legal", int64_t{1}).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(store->List(kAcme, {})->profiles.empty());
  EXPECT_EQ((*store->Put(kAcme, MakePut("legal", 4, 0)))->version, 3);
  EXPECT_EQ(store->Get(kAcme, "legal", std::string("stable")).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ((*store->Get(kOther, "legal", Newest()))->content, MakeContent(3));
}

TEST_P(WriteStoreTest, Aliases) {
  const auto store = place_.Open();
  EXPECT_EQ(store->SetAlias(kAcme, {"legal", "stable", 1, {}}).code(), StatusCode::kNotFound);
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 2)).ok());
  EXPECT_EQ(store->SetAlias(kAcme, {"legal", "stable", 3, {}}).code(), StatusCode::kNotFound);
  EXPECT_EQ(store->SetAlias(kOther, {"legal", "stable", 1, {}}).code(), StatusCode::kNotFound);
  EXPECT_TRUE(store->SetAlias(kAcme, {"legal", "stable", 1, 0}).ok());
  EXPECT_EQ(store->SetAlias(kAcme, {"legal", "stable", 2, 0}).code(), StatusCode::kAborted);
  EXPECT_TRUE(store->SetAlias(kAcme, {"legal", "stable", 2, 1}).ok());
  EXPECT_EQ((*store->Get(kAcme, "legal", std::string("stable")))->version, 2);
  EXPECT_EQ(store->SetAlias(kAcme, {"legal", "2nd", 2, {}}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(store->SetAlias(kAcme, {"legal", "stable", 0, 2}).ok());
  EXPECT_EQ(store->SetAlias(kAcme, {"legal", "stable", 0, {}}).code(), StatusCode::kNotFound);
  for (int i = 0; i < 16; ++i) {
    EXPECT_TRUE(store->SetAlias(kAcme, {"legal", "a" + std::to_string(i), 1, 0}).ok());
  }
  EXPECT_EQ(Reason(store->SetAlias(kAcme, {"legal", "more", 1, 0})), "PROFILE_QUOTA");
  EXPECT_TRUE(store->SetAlias(kAcme, {"legal", "a3", 2, 1}).ok());
}

// bad input: Limits and load | a tenant over its quota of profiles or bytes | RESOURCE_EXHAUSTED,
//   PROFILE_QUOTA with QuotaFailure, "do not retry" | CalibrateTest.AFullQuotaIsToldBeforeAnyWork
TEST_P(WriteStoreTest, Quotas) {
  ProfileStoreOptions options = StorePlace::FastOptions();
  const auto pass = place_.Open(options);
  ASSERT_TRUE(pass->Put(kOther, MakePut("a", 1)).ok());
  const int64_t bytes = pass->List(kOther, {})->profiles[0].bytes;
  options.quota = {.versions = 3, .bytes = 1 << 20, .versions_ever = 5};
  auto store = place_.Open(options);
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(store->Put(kAcme, MakePut("a", i)).ok());
  const absl::Status over = store->Put(kAcme, MakePut("b", 1)).status();
  EXPECT_THAT(over, FailsFor(StatusCode::kResourceExhausted, "PROFILE_QUOTA"));
  EXPECT_EQ(GetErrorDetail(over).metadata["limit"], "3");
  EXPECT_TRUE(store->Put(kOther, MakePut("b", 1)).ok());
  ASSERT_TRUE(store->Delete(kAcme, "a", {}).ok());
  EXPECT_TRUE(store->Put(kAcme, MakePut("b", 1)).ok());
  EXPECT_TRUE(store->Put(kAcme, MakePut("b", 1)).ok());
  EXPECT_EQ(GetErrorDetail(store->Put(kAcme, MakePut("b", 1)).status()).metadata["limit"], "5");
  options.quota = {.versions = 100, .bytes = 3 * bytes - 1, .versions_ever = 100};
  store = place_.Open(options);
  const Tenant third = TenantOf("third");
  EXPECT_TRUE(store->Put(third, MakePut("a", 1)).ok());
  EXPECT_TRUE(store->Put(third, MakePut("a", 1)).ok());
  const absl::Status large = store->Put(third, MakePut("a", 1)).status();
  EXPECT_EQ(Reason(large), "PROFILE_QUOTA");
  EXPECT_THAT(std::string(large.message()), ::testing::HasSubstr(" bytes"));
}

TEST_P(WriteStoreTest, WhatATenantUsesIsKnownToEveryProcess) {
  const auto writer = place_.Open(), reader = place_.Open();
  ASSERT_TRUE(Eventually([&] { return reader->Use(kAcme).has_value(); }));
  EXPECT_EQ(reader->Use(kAcme), ProfileUse());
  ASSERT_TRUE(writer->Put(kAcme, MakePut("a", 1)).ok());
  ASSERT_TRUE(writer->Put(kAcme, MakePut("a", 2)).ok());
  ASSERT_TRUE(writer->Put(kAcme, MakePut("b", 1)).ok());
  const int64_t bytes = writer->List(kAcme, {})->profiles[1].bytes;
  ASSERT_TRUE(writer->Delete(kAcme, "a", {}).ok());
  const ProfileUse want{.versions = 1, .bytes = bytes, .versions_ever = 3};
  EXPECT_TRUE(Eventually([&] { return reader->Use(kAcme) == want; }));
  EXPECT_TRUE(Eventually([&] { return writer->Use(kAcme) == want; }));
  EXPECT_EQ(reader->Use(kOther), ProfileUse());
  const auto late = place_.Open();
  EXPECT_TRUE(Eventually([&] { return late->Use(kAcme) == want; }));
}

// Two stores on one place, as two processes; every round one writer wins and one is told
// so.
TEST_P(WriteStoreTest, OneOfTwoWritersWins) {
  const auto a = place_.Open(), b = place_.Open();
  for (int64_t round = 0; round < 25; ++round) {
    std::array<absl::Status, 2> results;
    std::thread other([&] { results[1] = b->Put(kAcme, MakePut("legal", 1, round)).status(); });
    results[0] = a->Put(kAcme, MakePut("legal", 2, round)).status();
    other.join();
    const absl::Status& lost = results[0].ok() ? results[1] : results[0];
    EXPECT_TRUE(results[0].ok() != results[1].ok()) << results[0] << results[1];
    EXPECT_EQ(lost.code(), round == 0 ? StatusCode::kAlreadyExists : StatusCode::kAborted) << lost;
  }
  EXPECT_EQ((*a->Get(kAcme, "legal", Newest()))->version, 25);
}

// The same request from many threads is done once.
TEST_P(WriteStoreTest, ConcurrentReplaysStoreOneVersion) {
  const auto a = place_.Open(), b = place_.Open();
  PutProfile put = MakePut("legal", 1);
  put.request_id = "once";
  put.payload_digest = std::string(64, '1');
  std::vector<std::thread> threads;
  std::atomic<int> first = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto stored = (i % 2 == 0 ? a : b)->Put(kAcme, put);
      if (stored.ok() && (*stored)->version == 1) ++first;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first, 8);
  EXPECT_EQ(a->ListVersions(kAcme, "legal", {})->profiles.size(), 1u);
}

TEST_P(WriteStoreTest, ReadersSeeWholeProfilesBesideAWriter) {
  const auto store = place_.Open();
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (uint32_t i = 2; i <= 60; ++i) EXPECT_TRUE(store->Put(kAcme, MakePut("legal", i)).ok());
    done = true;
  });
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      int64_t last = 0;
      while (!done) {
        const auto read = store->Get(kAcme, "legal", Newest());
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_GE((*read)->version, last);
        last = (*read)->version;
        EXPECT_EQ((*read)->content, MakeContent(static_cast<uint32_t>(last)));
      }
    });
  }
  writer.join();
  for (std::thread& reader : readers) reader.join();
}

TEST_P(WriteStoreTest, OwnChangesAreToldAtOnceAndNotAfterTheWatch) {
  const auto store = place_.Open();
  std::atomic<int> told = 0;
  auto watch = store->Watch([&](const ProfileChange& change) {
    if (change.tenant == kAcme && change.name == "legal") ++told;
  });
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 1)).ok());
  EXPECT_GE(told, 1);
  watch.Release();
  const int before = told;
  ASSERT_TRUE(store->Put(kAcme, MakePut("legal", 2)).ok());
  EXPECT_EQ(told, before);
}

}  // namespace
}  // namespace eta
