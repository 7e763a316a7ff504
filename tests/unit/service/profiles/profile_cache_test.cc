// Profiles in memory: what answers at once, what waits for the store, and how long it is believed.
#include "service/profiles/profile_cache.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/base/eventually.h"
#include "tests/testing/profiles/faulty_store.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAreArray;

absl::Status Down() {
  return MakeError(absl::StatusCode::kUnavailable, "the profile store cannot be reached",
                   {.reason = "STORE_UNAVAILABLE"});
}

class ProfileCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { Open({}); }

  void Open(const ProfileCacheOptions& options) {
    cache_.reset();
    cache_ = std::make_unique<ProfileCache>(store_, options);
  }

  // Puts version 1 + how many there are, as another process would.
  ProfilePtr Put(const std::string& name, uint32_t seed, const Tenant& tenant = kAcme) {
    auto stored = store_.others().Put(tenant, MakePut(name, seed));
    EXPECT_TRUE(stored.ok()) << stored.status();
    return *stored;
  }

  std::future<ProfileCache::Answer> Ask(const std::string& reference,
                                        const Tenant& tenant = kAcme) {
    auto promise = std::make_shared<std::promise<ProfileCache::Answer>>();
    cache_->Resolve(tenant, ParseProfileReference("profile", reference).value(),
                    [promise](ProfileCache::Answer answer) { promise->set_value(answer); });
    return promise->get_future();
  }
  std::future<ProfileCache::Answer> AskDefault(const std::string& reference) {
    auto promise = std::make_shared<std::promise<ProfileCache::Answer>>();
    cache_->ResolveDefault(kAcme, ParseProfileReference("profile", reference).value(),
                           [promise](ProfileCache::Answer answer) { promise->set_value(answer); });
    return promise->get_future();
  }
  ProfileCache::Answer Get(const std::string& reference, const Tenant& tenant = kAcme) {
    return Await(Ask(reference, tenant));
  }
  static ProfileCache::Answer Await(std::future<ProfileCache::Answer> answer) {
    if (answer.wait_for(seconds(20)) != std::future_status::ready) {
      return absl::DeadlineExceededError("no answer");
    }
    return answer.get();
  }
  std::string ReasonOf(const std::string& reference, const Tenant& tenant = kAcme) {
    return GetErrorDetail(Get(reference, tenant).status()).reason;
  }
  int64_t VersionOf(const std::string& reference) {
    const auto answer = Get(reference);
    return answer.ok() ? (*answer)->version : -1;
  }
  static bool Ready(const std::future<ProfileCache::Answer>& answer) {
    return answer.wait_for(seconds(0)) == std::future_status::ready;
  }

  FaultyStore store_;
  std::unique_ptr<ProfileCache> cache_;
};

TEST_F(ProfileCacheTest, AnswersToTheBitAndFromMemoryOnceItIsLoaded) {
  const ProfilePtr record = Put("legal", 7);
  const auto profile = Get("legal").value();
  EXPECT_EQ(profile->name, "legal");
  EXPECT_EQ(profile->version, 1);
  EXPECT_THAT(profile->thresholds, ElementsAreArray(record->content.thresholds));
  EXPECT_EQ(profile->model_fingerprint, record->content.model_fingerprint);
  EXPECT_EQ(store_.reads(), 1);
  store_.Block();
  EXPECT_TRUE(Ready(Ask("legal"))) << "waits for nobody";
  EXPECT_EQ(store_.reads(), 1);
  store_.Release();
}

TEST_F(ProfileCacheTest, ReferencesToOneVersionShareIt) {
  Put("legal", 1);
  Put("legal", 2);
  ASSERT_TRUE(
      store_.others().SetAlias(kAcme, {.name = "legal", .alias = "stable", .version = 2}).ok());
  const auto newest = Get("legal").value();
  EXPECT_EQ(*Get("legal@2"), newest);
  EXPECT_EQ(*Get("legal@stable"), newest);
  EXPECT_EQ(VersionOf("legal@1"), 1);
}

TEST_F(ProfileCacheTest, WhatAnotherProcessStoredIsUsedOnceTheStoreTells) {
  Put("legal", 1);
  EXPECT_EQ(VersionOf("legal"), 1);
  Put("legal", 2);
  EXPECT_EQ(VersionOf("legal"), 1) << "nobody told";
  store_.Tell({.tenant = kAcme, .name = "legal"});
  EXPECT_TRUE(Eventually([&] { return VersionOf("legal") == 2; }));
  Put("legal", 3);
  store_.Tell({});  // anything may have changed
  EXPECT_TRUE(Eventually([&] { return VersionOf("legal") == 3; }));
}

TEST_F(ProfileCacheTest, AChangeDuringALoadIsNotMissed) {
  Put("legal", 1);
  store_.Block();
  auto answer = Ask("legal");
  ASSERT_TRUE(Eventually([&] { return store_.waiting() == 1; }));
  Put("legal", 2);
  store_.Tell({.tenant = kAcme, .name = "legal"});
  store_.Release();
  EXPECT_EQ((*answer.get())->version, 2);
  EXPECT_EQ(VersionOf("legal"), 2);
}

TEST_F(ProfileCacheTest, WhatIsNotThereIsFoundOnceItComes) {
  EXPECT_EQ(ReasonOf("legal"), "PROFILE_NOT_FOUND");
  EXPECT_EQ(ReasonOf("legal"), "PROFILE_NOT_FOUND");
  EXPECT_EQ(store_.reads(), 1) << "the answer is kept";
  Put("legal", 1);
  store_.Tell({.tenant = kAcme, .name = "legal"});
  EXPECT_EQ(VersionOf("legal"), 1) << "but not past a change";
}

TEST_F(ProfileCacheTest, WhatThisServerStoredIsUsedAtOnceEvenIfTheStoreFailsRightAfter) {
  EXPECT_EQ(ReasonOf("legal"), "PROFILE_NOT_FOUND");
  const ProfilePtr first = Put("legal", 1);
  store_.Fail(Down());
  cache_->Add(*first);
  EXPECT_EQ(VersionOf("legal"), 1);
  store_.Fail(absl::OkStatus());
  const ProfilePtr second = Put("legal", 2);
  cache_->Add(*second);
  EXPECT_EQ(VersionOf("legal"), 2);
  cache_->Add(*first);  // a repeated request's answer
  EXPECT_EQ(VersionOf("legal"), 2) << "an older version does not come back";
}

TEST_F(ProfileCacheTest, WhatThisServerDeletedIsGoneAtOnce) {
  Put("legal", 1);
  EXPECT_EQ(VersionOf("legal"), 1);
  EXPECT_EQ(VersionOf("legal@1"), 1);
  const auto in_use = Get("legal");
  ASSERT_TRUE(store_.others().Delete(kAcme, "legal", std::nullopt).ok());
  cache_->Forget(kAcme, "legal");
  EXPECT_EQ(ReasonOf("legal"), "PROFILE_NOT_FOUND");
  EXPECT_EQ(ReasonOf("legal@1"), "PROFILE_NOT_FOUND");
  EXPECT_EQ((*in_use)->version, 1) << "who has it goes on";
}

TEST_F(ProfileCacheTest, ANameOfAnotherTenantIsUnknownAfterTheSameWork) {
  Put("legal", 1, kOther);
  const absl::Status foreign = Get("legal").status();
  EXPECT_EQ(store_.reads(), 1);
  const absl::Status unknown = Get("nothing").status();
  EXPECT_EQ(store_.reads(), 2);
  EXPECT_EQ(foreign, unknown);
  Put("legal", 2);
  EXPECT_TRUE(Get("legal", kOther).ok());
  EXPECT_EQ((*Get("legal", kOther))->thresholds, MakeContent(1).thresholds);
}

// bad input: Store | down or locked | UNAVAILABLE with RetryInfo; Generate goes on with cached
//   profiles up to --profile_staleness | StoreOutage.RestartsOfPostgres
TEST_F(ProfileCacheTest, AStoreThatIsDownIsBridgedUntilProfilesAreStale) {
  Open({.staleness = milliseconds(300)});
  Put("legal", 1);
  EXPECT_EQ(VersionOf("legal"), 1);
  store_.Fail(Down());
  EXPECT_EQ(VersionOf("legal"), 1);
  EXPECT_EQ(ReasonOf("code"), "STORE_UNAVAILABLE") << "never loaded";
  EXPECT_TRUE(Eventually([&] { return ReasonOf("legal") == "STORE_UNAVAILABLE"; }));
  store_.Fail(absl::OkStatus());
  EXPECT_EQ(VersionOf("legal"), 1);
}

TEST_F(ProfileCacheTest, WhatWasNotThereStaysSoWhileTheStoreIsDown) {
  Open({.staleness = milliseconds(2000)});
  EXPECT_EQ(ReasonOf("legal"), "PROFILE_NOT_FOUND");
  store_.Fail(Down());
  store_.Tell({});  // the answer is not current any more
  EXPECT_EQ(ReasonOf("legal"), "PROFILE_NOT_FOUND");
  EXPECT_EQ(ReasonOf("code"), "STORE_UNAVAILABLE") << "never asked before";
  EXPECT_TRUE(Eventually([&] { return ReasonOf("legal") == "STORE_UNAVAILABLE"; })) << "stale";
  store_.Fail(absl::OkStatus());
  EXPECT_EQ(ReasonOf("legal"), "PROFILE_NOT_FOUND");
}

TEST_F(ProfileCacheTest, ADefaultDoesNotWaitForAStoreThatIsKnownToBeDown) {
  Put("legal", 1);
  store_.Fail(Down());
  const absl::Status down = Await(AskDefault("legal")).status();
  EXPECT_EQ(GetErrorDetail(down).reason, "STORE_UNAVAILABLE");
  store_.Block();
  auto answer = AskDefault("legal");
  ASSERT_TRUE(Ready(answer));
  EXPECT_EQ(answer.get().status(), down);
  EXPECT_FALSE(Ready(Ask("legal"))) << "who names it waits";
  store_.Fail(absl::OkStatus());
  store_.Release();
  EXPECT_TRUE(Eventually([&] { return Await(AskDefault("legal")).ok(); }));
}

TEST_F(ProfileCacheTest, ADefaultFindsOutByItselfThatTheStoreIsBack) {
  Put("legal", 1);
  store_.Fail(Down());
  EXPECT_FALSE(Await(AskDefault("legal")).ok());
  store_.Fail(absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return Await(AskDefault("legal")).ok(); }))
      << "although nobody names it";
}

TEST_F(ProfileCacheTest, ADefaultWaitsForAStoreThatHangsNoLongerThanItsPatience) {
  Open({.patience = milliseconds(50)});
  Put("legal", 1);
  store_.Block();
  auto named = Ask("legal");
  EXPECT_EQ(GetErrorDetail(Await(AskDefault("legal")).status()).reason, "STORE_UNAVAILABLE");
  EXPECT_FALSE(Ready(named));
  EXPECT_EQ(cache_->waiting(), 1u);
  EXPECT_TRUE(Eventually([&] { return Ready(AskDefault("other")); })) << "it is known to hang";
  store_.Release();
  EXPECT_TRUE(Await(std::move(named)).ok());
  EXPECT_TRUE(Eventually([&] { return Await(AskDefault("legal")).ok(); }));
}

TEST_F(ProfileCacheTest, TenantsWithAReferenceAreThoseForWhomItIsInMemory) {
  const ProfileReference legal = ParseProfileReference("profile", "legal").value();
  Put("legal", 1);
  Put("legal", 1, kOther);
  EXPECT_EQ(cache_->TenantsWith(legal), 0);
  EXPECT_TRUE(Get("legal").ok());
  EXPECT_TRUE(Get("legal@1", kOther).ok());
  EXPECT_FALSE(Get("legal", TenantOf("nobody")).ok());
  EXPECT_EQ(cache_->TenantsWith(legal), 1);
  EXPECT_TRUE(Get("legal", kOther).ok());
  EXPECT_EQ(cache_->TenantsWith(legal), 2);
}

TEST_F(ProfileCacheTest, AStoreThatIsUpKeepsProfilesFresh) {
  Open({.staleness = milliseconds(400)});
  Put("legal", 1);
  EXPECT_EQ(VersionOf("legal"), 1);
  ASSERT_TRUE(Eventually([&] { return store_.reads() >= 5; }));  // over 400 ms
  store_.Block();
  EXPECT_TRUE(Ready(Ask("legal"))) << "confirmed in the background";
  store_.Release();
}

TEST_F(ProfileCacheTest, ACorruptProfileIsRefusedAndNotReplaced) {
  Put("legal", 1);
  EXPECT_EQ(VersionOf("legal"), 1);
  store_.Fail(MakeError(absl::StatusCode::kDataLoss, "the stored profile fails its checks",
                        {.reason = "PROFILE_CORRUPT"}));
  store_.Tell({.tenant = kAcme, .name = "legal"});
  EXPECT_TRUE(Eventually([&] { return ReasonOf("legal") == "PROFILE_CORRUPT"; }));
}

TEST_F(ProfileCacheTest, ThousandProfilesStayResident) {
  constexpr int kCount = 1000;
  for (int i = 0; i < kCount; ++i) {
    ProfileRecord record{.tenant = kAcme,
                         .name = "p" + std::to_string(i),
                         .version = 1,
                         .content = MakeContent(static_cast<uint32_t>(i)),
                         .checksum = std::to_string(i)};
    cache_->Add(record);
  }
  store_.Block();
  for (int i = 0; i < kCount; ++i) {
    auto answer = Ask("p" + std::to_string(i));
    ASSERT_TRUE(Ready(answer)) << i;
  }
  store_.Release();
}

TEST_F(ProfileCacheTest, ForgetsTheLeastRecentlyUsed) {
  for (const char* name : {"a", "b", "c"}) Put(name, 1);
  Open({.max_bytes = 1200});  // two of them
  EXPECT_TRUE(Get("a").ok());
  EXPECT_TRUE(Get("b").ok());
  EXPECT_TRUE(Get("a").ok());
  EXPECT_TRUE(Get("c").ok());
  EXPECT_EQ(store_.reads(), 3);
  EXPECT_TRUE(Get("a").ok());
  EXPECT_EQ(store_.reads(), 3);
  EXPECT_TRUE(Get("b").ok());
  EXPECT_EQ(store_.reads(), 4);
}

TEST_F(ProfileCacheTest, UnknownNamesPushOutNoProfiles) {
  Put("legal", 1);
  Open({.max_missing = 2});
  EXPECT_EQ(VersionOf("legal"), 1);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(Get("unknown" + std::to_string(i)).ok());
  const int reads = store_.reads();
  EXPECT_EQ(VersionOf("legal"), 1);
  EXPECT_EQ(store_.reads(), reads);
}

TEST_F(ProfileCacheTest, ATenantThatFloodsASlowStoreHoldsUpNobodyElse) {
  Put("legal", 1, kOther);
  Open({.max_waiting = 16});
  store_.Block();
  std::vector<std::future<ProfileCache::Answer>> flood;
  for (int i = 0; i < 32; ++i) flood.push_back(Ask("unknown" + std::to_string(i)));
  EXPECT_EQ(std::count_if(flood.begin(), flood.end(), Ready), 24) << "it has half of the places";
  EXPECT_EQ(GetErrorDetail(flood.back().get().status()).reason, "QUEUE_FULL");
  ASSERT_TRUE(Eventually([&] { return store_.waiting() == 2; }));
  auto other = Ask("legal", kOther);
  EXPECT_FALSE(Ready(other));
  EXPECT_EQ(cache_->waiting(), 9u);
  store_.Release();
  EXPECT_TRUE(other.get().ok());
  ASSERT_TRUE(Eventually([&] { return cache_->waiting() == 0; }));
  const std::vector<std::string> readers = store_.readers();
  ASSERT_EQ(readers.size(), 9u);
  const auto turn = std::find(readers.begin(), readers.end(), kOther.id());
  EXPECT_LT(turn - readers.begin(), 6) << "two were being read, then they take turns";
}

TEST_F(ProfileCacheTest, WhatIsOldIsRenewedBesideAFloodOfRequests) {
  Put("legal", 1);
  EXPECT_EQ(VersionOf("legal"), 1);
  std::atomic<bool> stop = false;
  std::atomic<int> asked = 0;
  std::thread flood([&] {  // more than the store can answer
    while (!stop) {
      if (cache_->waiting() < 100) {
        cache_->Resolve(kOther,
                        ParseProfileReference("profile", "n" + std::to_string(asked)).value(),
                        [](const ProfileCache::Answer&) {});
        ++asked;
      }
    }
  });
  EXPECT_TRUE(Eventually([&] { return asked > 200; }));
  Put("legal", 2);
  store_.Tell({.tenant = kAcme, .name = "legal"});
  EXPECT_TRUE(Eventually([&] { return VersionOf("legal") == 2; }));
  stop = true;
  flood.join();
}

TEST_F(ProfileCacheTest, WhoCannotWaitIsRefusedAndWhoWaitsIsLetGoAtTheEnd) {
  Open({.max_waiting = 4});
  store_.Block();
  auto first = Ask("a");
  auto second = Ask("b");
  auto third = Ask("c");
  ASSERT_TRUE(Ready(third));
  EXPECT_EQ(GetErrorDetail(third.get().status()).reason, "QUEUE_FULL");
  cache_->Close();
  EXPECT_EQ(GetErrorDetail(first.get().status()).reason, "DRAINING");
  EXPECT_EQ(GetErrorDetail(second.get().status()).reason, "DRAINING");
  EXPECT_EQ(ReasonOf("d"), "DRAINING");
  store_.Release();
}

TEST_F(ProfileCacheTest, ManyThreadsAskWhileVersionsComeAndGo) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      int64_t seen = 0;
      while (!stop) {
        const auto answer = Get(i % 2 == 0 ? "legal" : "legal@1");
        if (!answer.ok()) {
          EXPECT_TRUE(absl::IsNotFound(answer.status())) << answer.status();
          continue;
        }
        EXPECT_GE((*answer)->version, seen);
        seen = (*answer)->version;
      }
    });
  }
  for (int i = 1; i <= 50; ++i) {
    const ProfilePtr record = Put("legal", static_cast<uint32_t>(i));
    if (i % 3 == 0) cache_->Add(*record);
    store_.Tell(i % 2 == 0 ? ProfileChange{} : ProfileChange{.tenant = kAcme, .name = "legal"});
  }
  EXPECT_TRUE(Eventually([&] { return VersionOf("legal") == 50; }));
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ProfileCacheTest, ANameWithVersionsForOtherModelsOnlyIsNoTroubleOfTheStore) {
  store_.Fail(MakeError(absl::StatusCode::kFailedPrecondition,
                        "the profile has no version for the served model",
                        {.reason = "PROFILE_MISMATCH"}));
  EXPECT_EQ(ReasonOf("legal"), "PROFILE_MISMATCH");
  EXPECT_EQ(ReasonOf("legal"), "PROFILE_MISMATCH");
  EXPECT_EQ(store_.reads(), 1) << "what the store said is known for a while";
  EXPECT_EQ(cache_->Status().reads, 1);
  EXPECT_EQ(cache_->Status().failed_reads, 0);
}

}  // namespace
}  // namespace eta::testing
