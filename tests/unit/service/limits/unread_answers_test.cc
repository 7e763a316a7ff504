// Answers that nobody reads: whom they are counted for, and who is refused for them.
#include "service/limits/unread_answers.h"

#include <vector>

#include "engine/base/error.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

constexpr size_t kBound = size_t{64} << 20;
constexpr size_t kOwn = UnreadAnswers::kCallBytes;

Tenant Named(const std::string& name) {
  return *Tenant::Parse(name);
}

class UnreadAnswersTest : public ::testing::Test {
 protected:
  bool Refused(const std::string& tenant) {
    const absl::Status status = answers_.Check(Named(tenant));
    if (status.ok()) return false;
    EXPECT_TRUE(absl::IsResourceExhausted(status));
    EXPECT_EQ(GetErrorDetail(status).reason, "ANSWERS_UNREAD");
    EXPECT_TRUE(GetErrorDetail(status).retry_after.has_value());
    return true;
  }

  UnreadAnswers answers_{kBound};
};

TEST_F(UnreadAnswersTest, CountUntilTheyAreTaken) {
  UnreadAnswers::Hold kept;
  {
    const UnreadAnswers::Hold taken = answers_.Add(Named("a"), 100);
    kept = answers_.Add(Named("b"), 7);
    EXPECT_EQ(answers_.Figures().bytes, static_cast<int64_t>(107 + 2 * kOwn));
  }
  EXPECT_EQ(answers_.Figures().bytes, static_cast<int64_t>(7 + kOwn));
  const UnreadAnswers::Hold moved = std::move(kept);
  kept = UnreadAnswers::Hold();
  EXPECT_EQ(answers_.Figures().bytes, static_cast<int64_t>(7 + kOwn));
}

TEST_F(UnreadAnswersTest, ATenantHasAQuarterAndOthersAreServed) {
  std::vector<UnreadAnswers::Hold> unread;
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(Refused("a")) << i;
    unread.push_back(answers_.Add(Named("a"), kBound / 16 - kOwn));
  }
  EXPECT_TRUE(Refused("a"));
  EXPECT_FALSE(Refused("b"));
  unread.pop_back();
  EXPECT_FALSE(Refused("a"));
}

TEST_F(UnreadAnswersTest, SmallAnswersCountAsCalls) {
  std::vector<UnreadAnswers::Hold> unread;
  while (!Refused("a")) unread.push_back(answers_.Add(Named("a"), 0));
  EXPECT_EQ(unread.size(), kBound / 4 / kOwn);
}

TEST_F(UnreadAnswersTest, WhoReadsIsServedWhereOthersHaveTakenAll) {
  std::vector<UnreadAnswers::Hold> unread;
  for (const char* tenant : {"a", "b", "c", "d"}) {
    unread.push_back(answers_.Add(Named(tenant), kBound / 4));
  }
  EXPECT_FALSE(Refused("e"));
  const UnreadAnswers::Hold small = answers_.Add(Named("e"), 1000);
  EXPECT_FALSE(Refused("e")) << "the last one may be under way when the next call comes";
  const UnreadAnswers::Hold large = answers_.Add(Named("e"), kBound / 64);
  EXPECT_TRUE(Refused("e"));
  unread.clear();
  EXPECT_FALSE(Refused("e"));
}

}  // namespace
}  // namespace eta
