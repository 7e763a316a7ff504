// Who may wait: limits, and whose request goes where a newcomer finds the queue full.
#include "engine/front/queue_ledger.h"

#include <gtest/gtest.h>

#include <vector>

namespace eta {
namespace {

using Limit = QueueLedger::Limit;

class QueueLedgerTest : public ::testing::Test {
 protected:
  static Request Of(const std::string& tenant, double weight = 1.0) {
    Request request;
    request.tenant = tenant;
    request.share.weight = weight;
    return request;
  }
  // Enters `count` requests; the handle of the last one.
  uint64_t Fill(const std::string& tenant, int count, int64_t tokens) {
    for (int i = 0; i < count; ++i) {
      EXPECT_FALSE(ledger_.Enter(++handle_, Of(tenant), tokens).refused_by);
    }
    return handle_;
  }
  QueueLedger::Room Enter(const std::string& tenant, int64_t tokens, double weight = 1.0) {
    return ledger_.Enter(++handle_, Of(tenant, weight), tokens);
  }

  QueueLedger ledger_{4, 100};
  uint64_t handle_ = 0;
};

TEST_F(QueueLedgerTest, OneTenantMayFillItAndNoMore) {
  Fill("a", 4, 10);
  EXPECT_EQ(Enter("a", 10).refused_by, Limit::kRequests);
  EXPECT_EQ(ledger_.requests(), 4);
  EXPECT_EQ(ledger_.tokens(), 40);
  ledger_.Leave(2);
  EXPECT_EQ(Enter("a", 71).refused_by, Limit::kTokens);
  EXPECT_FALSE(Enter("a", 70).refused_by);
}

TEST_F(QueueLedgerTest, ARequestThatWaitsAloneMayBeLongerThanTheQueue) {
  EXPECT_FALSE(Enter("a", 1000).refused_by);
  EXPECT_EQ(Enter("a", 1).refused_by, Limit::kTokens);
  EXPECT_EQ(Enter("b", 1).refused_by, Limit::kTokens)
      << "what is displaced is held to the limit too until it has left";
}

TEST_F(QueueLedgerTest, ANewcomerDisplacesTheNewestOfWhoeverHasMoreForItsWeight) {
  const uint64_t newest = Fill("a", 4, 10);
  auto room = Enter("b", 10);
  ASSERT_EQ(room.displaced.size(), 1u);
  EXPECT_EQ(room.displaced[0].handle, newest);
  EXPECT_EQ(room.displaced[0].limit, Limit::kRequests);
  EXPECT_EQ(ledger_.requests(), 4);
  EXPECT_EQ(ledger_.DisplacedBy(newest), Limit::kRequests);
  EXPECT_EQ(Enter("b", 10).displaced.size(), 1u) << "two and three";
  EXPECT_TRUE(Enter("b", 10).refused_by) << "three and two";
  EXPECT_EQ(Enter("c", 10, 4.0).displaced.size(), 1u) << "a quarter and two";
  ledger_.Leave(newest);
  EXPECT_FALSE(ledger_.DisplacedBy(newest));
}

TEST_F(QueueLedgerTest, AsManyGoAsTheNewcomersPromptNeedsOrNone) {
  Fill("a", 3, 30);
  const auto room = Enter("b", 50);
  ASSERT_EQ(room.displaced.size(), 2u);
  EXPECT_EQ(room.displaced[0].handle, 3u);
  EXPECT_EQ(room.displaced[1].handle, 2u);
  EXPECT_EQ(room.displaced[1].limit, Limit::kTokens);
  EXPECT_EQ(ledger_.tokens(), 80);
  ledger_.Clear();

  Fill("a", 2, 45);
  EXPECT_EQ(Enter("b", 60).refused_by, Limit::kTokens) << "it would have most by then";
  EXPECT_EQ(ledger_.tokens(), 90) << "and nobody went for it";
}

TEST_F(QueueLedgerTest, DisplacedRequestsThatHaveNotLeftAreHeldToTheLimitsToo) {
  Fill("a", 4, 1);
  std::vector<uint64_t> displaced;
  for (const char* tenant : {"b", "c", "d"}) {
    displaced.push_back(Enter(tenant, 1).displaced.at(0).handle);
  }
  EXPECT_TRUE(Enter("e", 1).refused_by) << "each has one";
  EXPECT_EQ(Enter("e", 1, 10.0).displaced.size(), 1u) << "a tenth and one";
  EXPECT_TRUE(Enter("f", 1, 100.0).refused_by) << "four are still to leave";
  EXPECT_FALSE(ledger_.empty());
  ledger_.Leave(displaced[0]);
  EXPECT_EQ(Enter("f", 1, 100.0).displaced.size(), 1u);
}

TEST_F(QueueLedgerTest, IsEmptyOnceEverybodyHasLeftDisplacedOrNot) {
  Fill("a", 4, 10);
  const auto room = Enter("b", 10);
  for (uint64_t handle = 1; handle <= handle_; ++handle) {
    EXPECT_FALSE(ledger_.empty()) << handle;
    ledger_.Leave(handle);
    ledger_.Leave(handle);
  }
  EXPECT_TRUE(ledger_.empty());
  EXPECT_EQ(ledger_.tokens(), 0);
}

TEST_F(QueueLedgerTest, AddsWhatWaitsToWhatElseATenantHas) {
  Fill("a", 2, 10);
  Fill("b", 1, 5);
  std::vector<TenantQueue> tenants = {{.tenant = "b", .weight = 2.0, .running = 1, .waiting = 1}};
  ledger_.AddTo(tenants);
  ASSERT_EQ(tenants.size(), 2u);
  EXPECT_EQ(tenants[0].waiting, 2);
  EXPECT_EQ(tenants[0].waiting_tokens, 5);
  EXPECT_EQ(tenants[1].tenant, "a");
  EXPECT_EQ(tenants[1].waiting, 2);
  EXPECT_EQ(tenants[1].waiting_tokens, 20);
}

}  // namespace
}  // namespace eta
