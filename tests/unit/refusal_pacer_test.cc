// Refusals that wait for their turn: whose, for how long, and how many.
#include "service/limits/refusal_pacer.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Clock::duration kAlways = Clock::duration::max();

Tenant Named(const std::string& id) {
  return *Tenant::Parse(id);
}

class RefusalPacerTest : public ::testing::Test {
 protected:
  RefusalPacerTest() { Serve("quiet"); }

  void Serve(const std::string& tenant) { ASSERT_TRUE(ledger_.Enter(Named(tenant)).ok()); }
  // Refusals of the tenant at this moment, until one waits.
  std::optional<RefusalPacer::Hold> Flood(const std::string& tenant, int expected_at_once) {
    for (int i = 0; i < expected_at_once; ++i) {
      EXPECT_FALSE(pacer_.Next(Named(tenant), 0, kAlways).has_value()) << i;
    }
    return pacer_.Next(Named(tenant), 0, kAlways);
  }

  Clock::time_point now_ = Clock::now();
  TenantLimits limits_;
  TenantLedger ledger_{limits_, [this] { return now_; }};
  RefusalPacer pacer_{ledger_,
                      {.per_second = 10.0, .max_calls = 100, .max_bytes = size_t{64} << 20},
                      [this] { return now_; }};
};

TEST_F(RefusalPacerTest, ASecondsWorthIsAnsweredAtOnceThenOneAfterTheOther) {
  const auto first = Flood("noisy", 11);  // the eleventh is due at the end of that second
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->wait(), milliseconds(100));
  const auto second = pacer_.Next(Named("noisy"), 0, kAlways);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->wait(), milliseconds(200));
  now_ += milliseconds(250);
  const auto third = pacer_.Next(Named("noisy"), 0, kAlways);
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->wait(), milliseconds(50)) << "turns are ten a second, whenever they are asked";
  EXPECT_EQ(pacer_.Figures().waiting, 3);
  EXPECT_EQ(pacer_.Figures().delayed, 3);
}

TEST_F(RefusalPacerTest, TurnsThatNobodyTookComeBack) {
  ASSERT_TRUE(Flood("noisy", 11).has_value());
  now_ += seconds(60);
  Serve("quiet");
  EXPECT_TRUE(Flood("noisy", 11).has_value());
}

TEST_F(RefusalPacerTest, NothingWaitsLongerThanTheBound) {
  auto held = Flood("noisy", 11);
  std::vector<RefusalPacer::Hold> waiting;
  for (int i = 0; i < 80; ++i) {
    auto hold = pacer_.Next(Named("noisy"), 0, kAlways);
    ASSERT_TRUE(hold.has_value());
    EXPECT_LE(hold->wait(), RefusalPacer::kLongestWait);
    waiting.push_back(*std::move(hold));
  }
  EXPECT_EQ(waiting.back().wait(), RefusalPacer::kLongestWait);
  now_ += RefusalPacer::kLongestWait;
  Serve("quiet");
  EXPECT_FALSE(pacer_.Next(Named("noisy"), 0, kAlways).has_value()) << "no debt beyond that";
}

TEST_F(RefusalPacerTest, NorThanTheCallHas) {
  ASSERT_TRUE(Flood("noisy", 11).has_value());
  const auto hasty = pacer_.Next(Named("noisy"), 0, milliseconds(3));
  ASSERT_TRUE(hasty.has_value());
  EXPECT_EQ(hasty->wait(), milliseconds(3));
  EXPECT_FALSE(pacer_.Next(Named("noisy"), 0, milliseconds(-1)).has_value());
}

TEST_F(RefusalPacerTest, EachTenantHasTurnsOfItsOwn) {
  Serve("noisy");
  ASSERT_TRUE(Flood("noisy", 11).has_value());
  EXPECT_TRUE(Flood("loud", 11).has_value());
  EXPECT_FALSE(pacer_.Next(Named("quiet"), 0, kAlways).has_value());
}

TEST_F(RefusalPacerTest, ATenantAloneIsAnsweredAtOnce) {
  now_ += TenantLedger::kRecently;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_FALSE(pacer_.Next(Named("noisy"), 0, kAlways).has_value()) << i;
  }
  const auto entered = ledger_.Enter(Named("quiet"));
  ASSERT_TRUE(entered.ok());
  EXPECT_TRUE(Flood("noisy", 11).has_value()) << "what it did alone is not held against it";
  now_ += seconds(3600);
  EXPECT_TRUE(Flood("noisy", 11).has_value()) << "the other one's call still runs";
}

TEST_F(RefusalPacerTest, WithoutARateNobodyWaits) {
  RefusalPacer off{ledger_, {.max_calls = 100, .max_bytes = size_t{64} << 20}};
  for (int i = 0; i < 1000; ++i) {
    ASSERT_FALSE(off.Next(Named("noisy"), 0, kAlways).has_value()) << i;
  }
}

TEST_F(RefusalPacerTest, OnlySoManyWait) {
  std::vector<RefusalPacer::Hold> waiting;
  waiting.push_back(*Flood("noisy", 11));
  while (waiting.size() < 100) waiting.push_back(*pacer_.Next(Named("noisy"), 0, kAlways));
  EXPECT_FALSE(pacer_.Next(Named("noisy"), 0, kAlways).has_value());
  EXPECT_FALSE(Flood("loud", 11).has_value());
  EXPECT_EQ(pacer_.Figures().waiting, 100);
  waiting.pop_back();
  EXPECT_TRUE(pacer_.Next(Named("noisy"), 0, kAlways).has_value());
  waiting.clear();
  EXPECT_EQ(pacer_.Figures().waiting, 0);
  EXPECT_EQ(pacer_.Figures().delayed, 101);
}

TEST_F(RefusalPacerTest, OnlySoManyBytesWait) {
  const size_t large = ((size_t{32} << 20) - RefusalPacer::kCallBytes) / 2;
  const auto small = Flood("noisy", 11);
  ASSERT_TRUE(small.has_value());
  const auto first = pacer_.Next(Named("noisy"), large, kAlways);
  EXPECT_TRUE(first.has_value());
  EXPECT_FALSE(pacer_.Next(Named("noisy"), large, kAlways).has_value());
  EXPECT_TRUE(pacer_.Next(Named("noisy"), 0, kAlways).has_value());
}

TEST_F(RefusalPacerTest, NamesWithoutEndDoNotPileUp) {
  for (size_t i = 0; i < 3 * RefusalPacer::kMaxTenants; ++i) {
    EXPECT_FALSE(pacer_.Next(Named("t" + std::to_string(i)), 0, kAlways).has_value());
  }
  EXPECT_TRUE(Flood("noisy", 11).has_value());
}

}  // namespace
}  // namespace eta
