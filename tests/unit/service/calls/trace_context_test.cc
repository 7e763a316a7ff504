// W3C Trace Context: what is taken, and what is ignored as the specification asks.
#include "service/wire/trace_context.h"

#include <cstdint>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace eta {
namespace {

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParent[] = "00f067aa0ba902b7";
const std::string kGood = std::string("00-") + kTrace + "-" + kParent + "-01";

std::optional<TraceContext> ParseParent(const std::string& parent) {
  return ParseTraceContext({parent}, {});
}
std::string StateOf(const std::vector<std::string_view>& states) {
  return ParseTraceContext({kGood}, states)->state;
}

TEST(TraceContext, IsReadAndAnswered) {
  const auto context = ParseParent(kGood);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, kTrace);
  EXPECT_EQ(context->parent_id, kParent);
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(context->ParentOf("b7ad6b7169203331"),
            std::string("00-") + kTrace + "-b7ad6b7169203331-01");
  const auto unsampled = ParseParent(std::string("00-") + kTrace + "-" + kParent + "-00");
  ASSERT_TRUE(unsampled.has_value());
  EXPECT_FALSE(unsampled->sampled);
  EXPECT_EQ(unsampled->ParentOf("b7ad6b7169203331").substr(53), "00");
}

TEST(TraceContext, FlagsThatNobodyKnowsAreNotPassedOn) {
  const auto context = ParseParent(std::string("00-") + kTrace + "-" + kParent + "-fe");
  ASSERT_TRUE(context.has_value());
  EXPECT_FALSE(context->sampled);
}

TEST(TraceContext, WhatIsNotValidIsIgnored) {
  const std::string trace = kTrace;
  const std::string parent = kParent;
  for (const std::string& bad : {
           std::string(),
           std::string("00"),
           "00-" + trace + "-" + parent,                                   // no flags
           "00-" + trace + "-" + parent + "-1",                            // one digit
           "00-" + trace + "-" + parent + "-01-",                          // 00 ends there
           "00-" + trace + "-" + parent + "-01-more",                      //
           "ff-" + trace + "-" + parent + "-01",                           // never a version
           "0g-" + trace + "-" + parent + "-01",                           //
           "00-" + std::string(32, '0') + "-" + parent + "-01",            //
           "00-" + trace + "-" + std::string(16, '0') + "-01",             //
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + parent + "-01",        // capitals
           "00-" + trace.substr(1) + "-" + parent + "-01",                 //
           "00-" + trace + "x-" + parent + "-01",                          //
           "00_" + trace + "-" + parent + "-01",                           //
           "00-" + trace + "_" + parent + "-01",                           //
           "00-" + trace + "-" + parent + "_01",                           //
           "00-" + trace + "-" + parent + "-0x",                           //
           " " + kGood,                                                    //
           "01-" + trace + "-" + parent + "-01.more",                      // a later one
           std::string("00-") + trace + "-" + parent.substr(1) + "\0-01",  //
       }) {
    EXPECT_FALSE(ParseParent(bad).has_value()) << bad;
  }
  EXPECT_FALSE(ParseTraceContext({kGood, kGood}, {}).has_value());
  EXPECT_FALSE(ParseTraceContext({}, {"a=1"}).has_value());
}

TEST(TraceContext, OfALaterVersionTheKnownPartIsRead) {
  for (const std::string more : {"", "-", "-what-ever"}) {
    const auto context = ParseParent(std::string("cc-") + kTrace + "-" + kParent + "-01" + more);
    ASSERT_TRUE(context.has_value()) << more;
    EXPECT_EQ(context->ParentOf(kParent), kGood) << "answered as the version that we know";
  }
}

TEST(TraceContext, AStateIsKeptWholeOrNotAtAll) {
  EXPECT_EQ(StateOf({"congo=t61rcWkgMzE"}), "congo=t61rcWkgMzE");
  EXPECT_EQ(StateOf({"rojo=00f067aa0ba902b7", "congo=t61 rcW"}),
            "rojo=00f067aa0ba902b7,congo=t61 rcW");
  EXPECT_EQ(StateOf({"a=1 , , 0t@v_-*/=2"}), "a=1 , , 0t@v_-*/=2");
  for (const std::string bad :
       {"", ",", "novalue", "=1", "a=", "A=1", "1a=1", "a b=1", "a=1,a=2", "a=b=c", "a=\x01",
        "a=\xc3\xa4", "@v=1", "t@=1", "t@1v=1", "a@b@c=1"}) {
    EXPECT_EQ(StateOf({bad}), "") << bad;
  }
  const std::string key(256, 'k');
  EXPECT_EQ(StateOf({key + "=1"}), key + "=1");
  EXPECT_EQ(StateOf({key + "k=1"}), "");
  EXPECT_EQ(StateOf({"a=" + std::string(256, 'v')}).size(), 258u);
  EXPECT_EQ(StateOf({"a=" + std::string(257, 'v')}), "");
  EXPECT_EQ(StateOf({std::string(15, 't') + "@" + std::string(15, 's') + "=1"}), "");
  std::string many;
  for (int i = 0; i < 32; ++i) many += "k" + std::to_string(i) + "=1,";
  EXPECT_EQ(StateOf({many}), many);
  EXPECT_EQ(StateOf({many + "more=1"}), "");
  EXPECT_EQ(StateOf({"a=" + std::string(250, 'v') + ",b=" + std::string(250, 'v') + ",c=12345678"}),
            "")
      << "513 characters";
}

TEST(TraceContext, SpansAreDrawnAnew) {
  std::set<std::string> spans;
  for (int i = 0; i < 1000; ++i) spans.insert(NewSpanId());
  EXPECT_EQ(spans.size(), 1000u);
  EXPECT_EQ(spans.begin()->size(), 16u);
  EXPECT_EQ(spans.begin()->find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST(NewTrace, IsWholeAndHasNoParent) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) {
    const TraceContext trace = NewTrace(1.0);
    EXPECT_TRUE(trace.sampled);
    EXPECT_EQ(trace.parent_id, "");
    EXPECT_TRUE(ParseParent(trace.ParentOf(NewSpanId())).has_value());
    ids.insert(trace.trace_id);
  }
  EXPECT_EQ(ids.size(), 100u);
}

TEST(NewTrace, AShareIsSampledByTheIdsEnd) {
  int sampled = 0;
  for (int i = 0; i < 4000; ++i) {
    EXPECT_FALSE(NewTrace(0.0).sampled);
    const TraceContext trace = NewTrace(0.25);
    if (trace.sampled) ++sampled;
    const uint64_t end = std::stoull(trace.trace_id.substr(18), nullptr, 16);
    EXPECT_EQ(trace.sampled, end >= (uint64_t{3} << 54)) << trace.trace_id;
  }
  EXPECT_GT(sampled, 850);
  EXPECT_LT(sampled, 1150);
}

}  // namespace
}  // namespace eta
