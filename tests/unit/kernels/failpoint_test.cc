// Failpoints themselves: rules as text, actions, counts; and what an idle one costs.
#include "kernels/system/failpoint.h"

#include <atomic>
#include <chrono>
#include <new>
#include <set>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

constexpr Failpoint kPoint = Failpoint::kDrain;

class FailpointRules : public ::testing::Test {
 protected:
  ~FailpointRules() override { DisarmFailpoints(); }
};

TEST_F(FailpointRules, NamesAreDifferent) {
  EXPECT_EQ(
      std::set<std::string_view>(std::begin(kFailpointNames), std::end(kFailpointNames)).size(),
      kNumFailpoints);
  EXPECT_GE(kNumFailpoints, 20u);
}

TEST_F(FailpointRules, ActOnSoManyPassesAfterSoMany) {
  const int64_t before = FailpointStrikes(kPoint);
  EXPECT_FALSE(PassFailpoint(kPoint)) << "not armed";
  ASSERT_TRUE(ArmFailpoints("drain=fail*2@1"));
  std::string seen;
  for (int i = 0; i < 5; ++i) seen += PassFailpoint(kPoint) ? 'x' : '.';
  EXPECT_EQ(seen, ".xx..");
  EXPECT_EQ(FailpointStrikes(kPoint), before + 2);
  EXPECT_FALSE(PassFailpoint(Failpoint::kFileOpen)) << "another";
  DisarmFailpoints();
  EXPECT_FALSE(PassFailpoint(kPoint));
}

TEST_F(FailpointRules, ThrowDelayAndPause) {
  ASSERT_TRUE(ArmFailpoints("drain=bad_alloc*1"));
  EXPECT_THROW(PassFailpoint(kPoint), std::bad_alloc);
  ASSERT_TRUE(ArmFailpoints("drain=delay:20"));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(PassFailpoint(kPoint));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
  ASSERT_TRUE(ArmFailpoints("drain=pause"));
  const int64_t before = FailpointStrikes(kPoint);
  std::thread waiting([] { EXPECT_FALSE(PassFailpoint(kPoint)); });
  while (FailpointStrikes(kPoint) == before) std::this_thread::yield();
  DisarmFailpoints();
  waiting.join();
}

TEST_F(FailpointRules, ThatAreNoRulesChangeNothing) {
  ASSERT_TRUE(ArmFailpoints("drain=fail file.open=fail\nfile.read=delay:1*1@2\n"));
  for (const char* text : {"drain", "drain=", "drain=explode", "=fail", "file=fail", "drain=fail*",
                           "drain=fail@x", "drain=delay:", "drain=fail*1x"}) {
    EXPECT_FALSE(ArmFailpoints(text)) << text;
  }
  EXPECT_TRUE(PassFailpoint(kPoint));
  ASSERT_TRUE(ArmFailpoints(""));
  EXPECT_FALSE(PassFailpoint(kPoint));
}

}  // namespace
}  // namespace eta
