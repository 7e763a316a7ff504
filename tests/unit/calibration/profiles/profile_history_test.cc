// The judge of histories, on made-up ones: what a sound store can show passes, and every way of
// breaking a promise is found.
#include "tests/testing/profiles/profile_history.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using E = ProfileEvent;
using ::testing::HasSubstr;

constexpr char kName[] = "legal";

E Put(int64_t begin, int64_t end, uint32_t seed, int64_t version) {
  return {E::kPut, E::kOk, kName, begin, end, seed, version, ""};
}
E LostPut(int64_t begin, uint32_t seed) {
  return {E::kPut, E::kUnknown, kName, begin, E::kNever, seed, 0, ""};
}
E Newest(int64_t begin, int64_t end, int64_t version, uint32_t seed) {
  return {
      E::kGetNewest, version == 0 ? E::kNotFound : E::kOk, kName, begin, end, seed, version, ""};
}
E Version(int64_t begin, int64_t end, int64_t version, uint32_t seed) {
  return {E::kGetVersion, seed == 0 ? E::kNotFound : E::kOk, kName, begin, end, seed, version, ""};
}
E Alias(int64_t begin, int64_t end, int64_t version, uint32_t seed) {
  return {E::kGetAlias, seed == 0 ? E::kNotFound : E::kOk, kName, begin, end, seed, version,
          "stable"};
}
E SetAlias(int64_t begin, int64_t end, int64_t version, E::Outcome outcome = E::kOk) {
  return {E::kSetAlias, outcome, kName, begin, end, 0, version, "stable"};
}
E Delete(int64_t begin, int64_t end, E::Outcome outcome = E::kOk) {
  return {E::kDelete, outcome, kName, begin, end, 0, 0, ""};
}

bool Sound(const std::vector<E>& history) {
  return CheckHistory(history).ok();
}

TEST(ProfileHistory, WhatASoundStoreShowsPasses) {
  EXPECT_TRUE(Sound({}));
  EXPECT_TRUE(Sound({Newest(1, 2, 0, 0), Put(3, 4, 7, 1), Newest(5, 6, 1, 7)}));
  EXPECT_TRUE(Sound({Put(1, 2, 7, 1), Put(3, 4, 8, 2), Version(5, 6, 1, 7), Version(5, 6, 3, 0)}));
  EXPECT_TRUE(Sound({Put(1, 2, 7, 1), Delete(3, 4), Newest(5, 6, 0, 0), Put(7, 8, 8, 2),
                     Version(9, 10, 1, 0), Newest(9, 10, 2, 8)}));
  EXPECT_TRUE(
      Sound({Put(1, 2, 7, 1), SetAlias(3, 4, 1), Alias(5, 6, 1, 7), SetAlias(7, 8, 0),
             Alias(9, 10, 0, 0), SetAlias(11, 12, 9, E::kNotFound),
             SetAlias(13, 14, 0, E::kNotFound), Delete(15, 16), Delete(17, 18, E::kNotFound)}));
}

TEST(ProfileHistory, WhatOverlapsMayHaveBeenEitherWayRound) {
  EXPECT_TRUE(Sound({Put(1, 10, 7, 2), Put(2, 9, 8, 1)}));
  EXPECT_TRUE(Sound({Put(1, 10, 7, 1), Newest(2, 3, 0, 0), Newest(4, 5, 1, 7)}));
  EXPECT_TRUE(Sound({Put(1, 2, 7, 1), Delete(3, 10), Newest(4, 5, 1, 7), Newest(6, 7, 0, 0)}));
}

TEST(ProfileHistory, ALostWriteTookEffectAtAnyLaterTimeOrNever) {
  EXPECT_TRUE(Sound({LostPut(1, 7), Newest(2, 3, 0, 0), Newest(4, 5, 1, 7)}));
  EXPECT_TRUE(Sound({LostPut(1, 7), Newest(2, 3, 0, 0), Put(4, 5, 8, 1), Newest(6, 7, 1, 8)}));
  EXPECT_TRUE(Sound({LostPut(1, 7), Put(4, 5, 8, 2), Version(6, 7, 1, 7)}));
  EXPECT_TRUE(Sound({Put(1, 2, 7, 1), SetAlias(3, E::kNever, 1, E::kUnknown), Alias(4, 5, 0, 0),
                     Alias(6, 7, 1, 7)}));
  EXPECT_TRUE(Sound({Put(1, 2, 7, 1), Delete(3, E::kNever, E::kUnknown), Newest(4, 5, 1, 7),
                     Newest(6, 7, 0, 0)}));
  // But not before it was called, and not twice.
  EXPECT_FALSE(Sound({Newest(1, 2, 1, 7), LostPut(3, 7)}));
  EXPECT_FALSE(Sound({LostPut(1, 7), Newest(2, 3, 1, 7), Newest(4, 5, 2, 7)}));
  EXPECT_FALSE(Sound({LostPut(1, 7), Newest(2, 3, 1, 7), Newest(4, 5, 0, 0)}));
}

TEST(ProfileHistory, BrokenPromisesAreFound) {
  // A version that repeats, one that goes back, one that is left out.
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), Put(3, 4, 8, 1)}));
  EXPECT_FALSE(Sound({Put(1, 2, 7, 2), Put(3, 4, 8, 1)}));
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), Put(3, 4, 8, 3)}));
  // One that is used again after it was deleted.
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), Delete(3, 4), Put(5, 6, 8, 1)}));
  // An acknowledged write that is lost, a deleted profile that comes back.
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), Newest(3, 4, 0, 0)}));
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), Version(3, 4, 1, 0)}));
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), Delete(3, 4), Newest(5, 6, 1, 7)}));
  // A stale read, and a read that goes back.
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), Put(3, 4, 8, 2), Newest(5, 6, 1, 7)}));
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), Put(3, 10, 8, 2), Newest(4, 5, 2, 8), Newest(6, 7, 1, 7)}));
  // Content that nobody wrote, or that belongs to another version.
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), Newest(3, 4, 1, 9)}));
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), Put(3, 4, 8, 2), Newest(5, 6, 2, 7)}));
  // An alias that did not move, that moved by itself, that outlived its profile.
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), Put(3, 4, 8, 2), SetAlias(5, 6, 1), SetAlias(7, 8, 2),
                      Alias(9, 10, 1, 7)}));
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), Alias(3, 4, 1, 7)}));
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), SetAlias(3, 4, 1), Delete(5, 6), Alias(7, 8, 1, 7)}));
  // A write that says that it found what is not there.
  EXPECT_FALSE(Sound({Put(1, 2, 7, 1), SetAlias(3, 4, 2)}));
  EXPECT_FALSE(Sound({Delete(1, 2)}));
}

TEST(ProfileHistory, SaysWhatDoesNotFit) {
  const absl::Status status =
      CheckHistory({Put(1, 2, 7, 1), Put(3, 4, 8, 2), Newest(5, 6, 1, 7), Newest(7, 8, 2, 8)});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("legal"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 of 4 fit"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("GetNewest legal"));
}

// Random histories of a model that is right: they pass. With one answer changed: nearly all are
// found, since nearly every change shows.
TEST(ProfileHistory, RandomHistoriesPassUntilOneAnswerIsChanged) {
  std::mt19937 random(1);
  int found = 0;
  constexpr int kHistories = 200;
  for (int round = 0; round < kHistories; ++round) {
    std::vector<E> history;
    int64_t last = 0, clock = 0;
    bool there = false;
    for (int i = 0; i < 40; ++i) {
      clock += 10;
      // Calls overlap by their width; each takes effect in the middle.
      const int64_t begin = clock - static_cast<int64_t>(random() % 25);
      const int64_t end = clock + static_cast<int64_t>(random() % 25);
      const uint32_t kind = random() % 10;
      if (kind < 4) {
        ++last;
        there = true;
        history.push_back(random() % 8 == 0 ? LostPut(begin, static_cast<uint32_t>(last))
                                            : Put(begin, end, static_cast<uint32_t>(last), last));
      } else if (kind < 5) {
        history.push_back(Delete(begin, end, there ? E::kOk : E::kNotFound));
        there = false;
      } else {
        history.push_back(
            Newest(begin, end, there ? last : 0, there ? static_cast<uint32_t>(last) : 0));
      }
    }
    ASSERT_TRUE(Sound(history)) << CheckHistory(history);
    E& changed = history[20 + random() % 20];
    if (changed.kind == E::kGetNewest && changed.outcome == E::kOk) {
      changed.version += 1;
    } else if (changed.outcome == E::kUnknown) {
      continue;
    } else {
      changed.outcome = changed.outcome == E::kOk ? E::kNotFound : E::kOk;
      if (changed.kind == E::kPut) changed = Put(changed.begin, changed.end, 1000, 1000);
    }
    found += !Sound(history);
  }
  EXPECT_GT(found, kHistories * 3 / 4);
}

}  // namespace
}  // namespace eta
