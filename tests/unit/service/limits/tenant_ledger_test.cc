#include "service/limits/tenant_ledger.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/profiles/profile_case.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class TenantLedgerTest : public ::testing::Test {
 protected:
  void Limit(const std::string& json) {
    const absl::Status taken = limits_.Apply(json);
    ASSERT_TRUE(taken.ok()) << taken;
  }
  TenantLedger::Lease Enter(const std::string& tenant) {
    auto lease = ledger_.Enter(TenantOf(tenant));
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() ? *std::move(lease) : TenantLedger::Lease();
  }
  int64_t Left(const std::string& tenant) { return *ledger_.UseOf(TenantOf(tenant)).tokens_left; }

  Clock::time_point now_ = Clock::now();
  TenantLimits limits_;
  TenantLedger ledger_{limits_, [this] { return now_; }};
};

TEST_F(TenantLedgerTest, WithoutLimitsEverybodyComesIn) {
  std::vector<TenantLedger::Lease> leases;
  for (int i = 0; i < 100; ++i) {
    leases.push_back(Enter("a"));
    EXPECT_TRUE(leases.back().Charge(1'000'000'000).ok());
  }
  EXPECT_EQ(ledger_.UseOf(TenantOf("a")).calls, 100);
  EXPECT_FALSE(ledger_.UseOf(TenantOf("a")).tokens_left.has_value());
  leases.clear();
  EXPECT_EQ(ledger_.UseOf(TenantOf("a")).calls, 0);
}

// A calibration between two of its calls.
TEST_F(TenantLedgerTest, WorkThatOutlivesItsCallsPaysAndTakesNoPlace) {
  Limit(R"({"default": {"max_calls": 1, "tokens_per_second": 0.001, "burst_tokens": 100}})");
  TenantLedger::Lease work = ledger_.Open(TenantOf("a"));
  EXPECT_TRUE(work.Charge(60).ok());
  EXPECT_EQ(ledger_.UseOf(TenantOf("a")).calls, 0);
  {
    TenantLedger::Lease call = Enter("a");
    EXPECT_EQ(Reason(ledger_.Enter(TenantOf("a")).status()), "TENANT_CALLS");
    EXPECT_EQ(Reason(call.Charge(50)), "TENANT_TOKENS");
  }
  // What others owe nothing for may be dropped, but not an account in use.
  for (size_t i = 0; i < TenantLedger::kMaxAccounts + 10; ++i) Enter(absl::StrCat("t", i));
  work.Use(25);
  work.Release();
  EXPECT_EQ(Left("a"), 75);
}

TEST_F(TenantLedgerTest, CallsAtATimeAreCountedPerTenant) {
  Limit(R"({"default": {"max_calls": 2}, "tenants": {"big": {"max_calls": 3}}})");
  TenantLedger::Lease first = Enter("a");
  TenantLedger::Lease second = Enter("a");
  const absl::Status refusal = ledger_.Enter(TenantOf("a")).status();
  EXPECT_THAT(refusal, FailsFor(absl::StatusCode::kResourceExhausted, "TENANT_CALLS"));
  EXPECT_EQ(GetErrorDetail(refusal).metadata.at("quota"), "max_calls");
  EXPECT_EQ(GetErrorDetail(refusal).metadata.at("limit"), "2");
  EXPECT_TRUE(GetErrorDetail(refusal).retry_after.has_value());
  TenantLedger::Lease others = Enter("b");
  TenantLedger::Lease big[] = {Enter("big"), Enter("big"), Enter("big")};
  EXPECT_FALSE(ledger_.Enter(TenantOf("big")).ok());
  second.Release();
  second.Release();  // once is enough
  EXPECT_EQ(ledger_.UseOf(TenantOf("a")).calls, 1);
  TenantLedger::Lease moved = std::move(first);
  EXPECT_EQ(ledger_.UseOf(TenantOf("a")).calls, 1);
  EXPECT_TRUE(ledger_.Enter(TenantOf("a")).ok());
}

TEST_F(TenantLedgerTest, TheHintFollowsHowLongCallsTake) {
  Limit(R"({"default": {"max_calls": 4}})");
  for (int i = 0; i < 4; ++i) {
    TenantLedger::Lease lease = Enter("a");
    now_ += seconds(8);
  }
  std::vector<TenantLedger::Lease> full;
  for (int i = 0; i < 4; ++i) full.push_back(Enter("a"));
  EXPECT_EQ(GetErrorDetail(ledger_.Enter(TenantOf("a")).status()).retry_after, seconds(2));
}

// bad input: Limits and load | a tenant over its token budget | RESOURCE_EXHAUSTED, TENANT_TOKENS
//   with RetryInfo; what was not used comes back |
//   LimitsTest.TokensOverTheBudgetAreRefusedWithTheTimeToWait
TEST_F(TenantLedgerTest, TokensAreTakenAndFlowIn) {
  Limit(R"({"default": {"tokens_per_second": 10, "burst_tokens": 1000}})");
  TenantLedger::Lease first = Enter("a");
  ASSERT_TRUE(first.Charge(900).ok());
  EXPECT_EQ(Left("a"), 100);
  TenantLedger::Lease second = Enter("a");
  const absl::Status refusal = second.Charge(101);
  EXPECT_EQ(Reason(refusal), "TENANT_TOKENS");
  EXPECT_EQ(GetErrorDetail(refusal).retry_after, milliseconds(100));
  EXPECT_EQ(GetErrorDetail(refusal).metadata.at("tokens"), "101");
  EXPECT_EQ(Left("b"), 1000) << "another tenant's budget is its own";
  now_ += milliseconds(99);
  EXPECT_EQ(GetErrorDetail(second.Charge(101)).retry_after, milliseconds(1));
  now_ += milliseconds(1);
  EXPECT_TRUE(second.Charge(101).ok()) << "after the time that it was told";
  EXPECT_EQ(Left("a"), 0);
  now_ += seconds(3600);
  EXPECT_EQ(Left("a"), 1000) << "and no more than the burst";
}

TEST_F(TenantLedgerTest, WhatWasNotUsedComesBack) {
  Limit(R"({"default": {"tokens_per_second": 1, "burst_tokens": 1000}})");
  {
    TenantLedger::Lease refused_later = Enter("a");
    ASSERT_TRUE(refused_later.Charge(1000).ok());
    EXPECT_EQ(Left("a"), 0);
  }
  EXPECT_EQ(Left("a"), 1000) << "a call that never ran";
  {
    TenantLedger::Lease short_answer = Enter("a");
    ASSERT_TRUE(short_answer.Charge(600).ok());
    short_answer.Use(250);
  }
  EXPECT_EQ(Left("a"), 750);
  {
    TenantLedger::Lease over = Enter("a");
    ASSERT_TRUE(over.Charge(700).ok());
    over.Use(9999);  // never more than was taken
  }
  EXPECT_EQ(Left("a"), 50);
  {
    TenantLedger::Lease twice = Enter("a");  // as where a second engine is asked
    ASSERT_TRUE(twice.Charge(50).ok());
    ASSERT_TRUE(twice.Charge(50).ok());
    EXPECT_EQ(Left("a"), 0);
  }
  EXPECT_EQ(Left("a"), 50);
}

TEST_F(TenantLedgerTest, ARefusedSecondChargeLeavesWhatWasUsed) {
  Limit(R"({"default": {"tokens_per_second": 1, "burst_tokens": 1000}})");
  {
    TenantLedger::Lease other = Enter("a");
    ASSERT_TRUE(other.Charge(50).ok());
    TenantLedger::Lease lease = Enter("a");
    ASSERT_TRUE(lease.Charge(900).ok());
    lease.Use(100);
    const absl::Status refusal = lease.Charge(960);
    EXPECT_EQ(Reason(refusal), "TENANT_TOKENS");
    EXPECT_EQ(GetErrorDetail(refusal).retry_after, seconds(110)) << "the used ones have to flow in";
    EXPECT_EQ(Left("a"), 850);
    EXPECT_EQ(GetErrorDetail(lease.Charge(1001)).retry_after, std::nullopt);
    EXPECT_EQ(Left("a"), 850) << "used once";
  }
  EXPECT_EQ(Left("a"), 900);
}

TEST_F(TenantLedgerTest, AnOldChargeGivesBackNoMoreThanIsOwed) {
  Limit(R"({"default": {"tokens_per_second": 100, "burst_tokens": 1000}})");
  TenantLedger::Lease slow = Enter("a");
  ASSERT_TRUE(slow.Charge(1000).ok());
  now_ += seconds(9);  // 900 of it have flowed in again
  slow.Release();
  EXPECT_EQ(Left("a"), 1000);
}

TEST_F(TenantLedgerTest, WhatNeverFitsIsRefusedForGood) {
  Limit(R"({"default": {"tokens_per_second": 10, "burst_tokens": 1000}})");
  TenantLedger::Lease lease = Enter("a");
  const absl::Status refusal = lease.Charge(1001);
  EXPECT_THAT(refusal, FailsFor(absl::StatusCode::kResourceExhausted, "TENANT_TOKENS"));
  EXPECT_EQ(GetErrorDetail(refusal).metadata.at("quota"), "burst_tokens");
  EXPECT_FALSE(GetErrorDetail(refusal).retry_after.has_value());
  EXPECT_EQ(Left("a"), 1000);
}

TEST_F(TenantLedgerTest, NewLimitsHoldForWhatIsOwedAlready) {
  Limit(R"({"default": {"tokens_per_second": 1, "burst_tokens": 1000}})");
  TenantLedger::Lease lease = Enter("a");
  ASSERT_TRUE(lease.Charge(900).ok());
  Limit(R"({"default": {"tokens_per_second": 1, "burst_tokens": 500}})");
  EXPECT_EQ(Left("a"), 0);
  TenantLedger::Lease next = Enter("a");
  EXPECT_EQ(GetErrorDetail(next.Charge(100)).retry_after, seconds(500));
  Limit(R"({"default": {"tokens_per_second": 1, "burst_tokens": 2000}})");
  EXPECT_EQ(Left("a"), 1100);
  Limit("{}");
  EXPECT_TRUE(next.Charge(1'000'000).ok());
}

TEST_F(TenantLedgerTest, NamesThatComeAndGoCostNoMemory) {
  Limit(R"({"default": {"tokens_per_second": 10, "burst_tokens": 100}})");
  for (int i = 0; i < 50'000; ++i) {
    TenantLedger::Lease lease = Enter(absl::StrCat("made-up-", i));
    ASSERT_TRUE(lease.Charge(10).ok());
    lease.Use(10);
    lease.Release();
    now_ += milliseconds(1);
  }
  EXPECT_LE(ledger_.accounts(), TenantLedger::kMaxAccounts);
}

TEST_F(TenantLedgerTest, ADebtOutlivesAFloodOfNames) {
  Limit(R"({"default": {"tokens_per_second": 1, "burst_tokens": 1000, "max_calls": 5000},
            "tenants": {"named": {}}})");
  {
    TenantLedger::Lease lease = Enter("debtor");
    ASSERT_TRUE(lease.Charge(1000).ok());
    lease.Use(1000);
  }
  for (int i = 0; i < 10'000; ++i) {  // none of them owes anything afterwards
    Enter(absl::StrCat("idle-", i));
    now_ += milliseconds(1);
  }
  EXPECT_LE(ledger_.accounts(), TenantLedger::kMaxAccounts);
  EXPECT_EQ(Left("debtor"), 10);
  // All of these owe, so that there is no room; what comes then shares one account.
  std::vector<TenantLedger::Lease> leases;
  for (size_t i = 0; i < TenantLedger::kMaxAccounts + 10; ++i) {
    leases.push_back(Enter(absl::StrCat("busy-", i)));
    ASSERT_TRUE(leases.back().Charge(5).ok());
    now_ += milliseconds(1);
  }
  EXPECT_EQ(ledger_.accounts(), TenantLedger::kMaxAccounts);
  TenantLedger::Lease crowd = Enter("late-1");
  ASSERT_TRUE(crowd.Charge(900).ok());
  TenantLedger::Lease crowded = Enter("late-2");
  EXPECT_EQ(Reason(crowded.Charge(900)), "TENANT_TOKENS");
  TenantLedger::Lease named = Enter("named");
  EXPECT_TRUE(named.Charge(1000).ok()) << "those in the file have accounts of their own";
  EXPECT_LE(ledger_.accounts(), TenantLedger::kMaxAccounts + 1);
  EXPECT_EQ(Left("debtor"), 14);
}

TEST_F(TenantLedgerTest, TenantsThatTheLimitsNameTakeNobodysAccount) {
  constexpr size_t kNamed = 100;
  std::vector<std::string> entries;
  for (size_t i = 0; i < kNamed; ++i) entries.push_back(absl::StrCat("\"named-", i, "\": {}"));
  Limit(absl::StrCat(R"({"default": {"max_calls": 1}, "tenants": {)", absl::StrJoin(entries, ", "),
                     "}}"));
  std::vector<TenantLedger::Lease> leases;
  for (size_t i = 0; i < kNamed; ++i) leases.push_back(Enter(absl::StrCat("named-", i)));
  for (size_t i = 0; i < TenantLedger::kMaxAccounts; ++i) {
    leases.push_back(Enter(absl::StrCat("other-", i)));  // ends the test where it is refused
  }
  EXPECT_EQ(ledger_.accounts(), TenantLedger::kMaxAccounts + kNamed);
}

TEST_F(TenantLedgerTest, ShowsWhoUsesWhat) {
  Limit(R"({"tenants": {"b": {"max_calls": 9}, "d": {"tokens_per_second": 1}}})");
  TenantLedger::Lease lease = Enter("c");
  const std::vector<TenantUse> uses = ledger_.Uses();
  ASSERT_EQ(uses.size(), 3u);
  EXPECT_EQ(uses[0].tenant, "b");
  EXPECT_EQ(uses[0].limit.max_calls, 9);
  EXPECT_EQ(uses[1].tenant, "c");
  EXPECT_EQ(uses[1].calls, 1);
  EXPECT_EQ(uses[2].tenant, "d");
  EXPECT_EQ(uses[2].tokens_left, 60);
}

// Threads take and give back as they like: not one call or token more than there is gets through,
// and at the end all is there again.
TEST_F(TenantLedgerTest, ThreadsTogetherGetNoMoreThanThereIs) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 3000;
  constexpr int kCost = 10;
  Limit(R"({"default": {"max_calls": 5, "tokens_per_second": 0.001, "burst_tokens": 1000000},
            "tenants": {"few": {"tokens_per_second": 0.001, "burst_tokens": 333,
                                "max_calls": 1000}}})");
  std::atomic<int> inside = 0;
  std::atomic<int> most = 0;
  std::atomic<int64_t> used = 0;
  std::atomic<int> passed_of_few = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        auto lease = ledger_.Enter(TenantOf("a"));
        if (lease.ok()) {
          const int now_inside = ++inside;
          int seen = most;
          while (seen < now_inside && !most.compare_exchange_weak(seen, now_inside)) {
          }
          if (lease->Charge(kCost).ok() && (i + t) % 3 == 0) {
            lease->Use(1);
            ++used;
          }
          --inside;
        }
        auto few = ledger_.Enter(TenantOf("few"));
        if (few.ok() && few->Charge(kCost).ok()) {
          few->Use(kCost);
          ++passed_of_few;
        }
        if (i % 100 == 0) (void)ledger_.Uses();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, 5);
  EXPECT_EQ(Left("a"), 1'000'000 - used);
  EXPECT_EQ(passed_of_few, 33);
  EXPECT_EQ(ledger_.UseOf(TenantOf("a")).calls, 0);
  EXPECT_EQ(ledger_.UseOf(TenantOf("few")).calls, 0);
}

}  // namespace
}  // namespace eta
