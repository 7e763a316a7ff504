#include "engine/format/schema/json/json_text.h"

#include <string>

#include "engine/format/schema/json/json_number.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta::schema {
namespace {

using ::testing::ElementsAre;

absl::StatusOr<JsonText> Parse(std::string_view text, bool strict = true) {
  return JsonText::Parse(
      text,
      {.max_bytes = 1 << 20, .max_depth = 100, .unique_keys = strict, .whole_characters = strict});
}

std::string Error(std::string_view text) {
  return std::string(Parse(text).status().message());
}

bool Equal(std::string_view a, std::string_view b) {
  const auto x = Parse(a, /*strict=*/false);
  const auto y = Parse(b, /*strict=*/false);
  return JsonEqual(*x, 0, *y, 0);
}

int Order(std::string_view a, std::string_view b) {
  return Compare(Number(a), Number(b));
}

TEST(JsonText, KeepsTheOrderOfKeysAndNumbersAsTheyAreWritten) {
  const auto text = Parse(R"( {"b": [1.50, {}], "a": "x\u00e9\n\ud83d\ude00"} )");
  ASSERT_TRUE(text.ok());
  std::vector<std::string> keys;
  for (const uint32_t member : text->ChildrenOf(0)) keys.emplace_back((*text)[member].key);
  EXPECT_THAT(keys, ElementsAre("b", "a"));
  EXPECT_EQ((*text)[*text->At("/b/0")].text, "1.50");
  EXPECT_EQ((*text)[*text->At("/b/1")].kind, JsonKind::kObject);
  EXPECT_EQ((*text)[*text->At("/a")].text, "x\u00e9\n\U0001F600");
}

TEST(JsonText, PointersLeadThereAndBack) {
  const auto text = Parse(R"({"a/b": {"~": [0, [7]]}, "": 1})");
  ASSERT_TRUE(text.ok());
  const auto at = text->At("/a~1b/~0/1/0");
  ASSERT_TRUE(at);
  EXPECT_EQ((*text)[*at].text, "7");
  EXPECT_EQ(text->Pointer(*at), "/a~1b/~0/1/0");
  EXPECT_EQ(text->Pointer(0), "the root");
  EXPECT_EQ(*text->At("/"), text->size() - 1);
  for (const char* none : {"a", "/a", "/a~1b/~0/2", "/a~1b/~0/01", "/a~1b/~0/1/0/0"}) {
    EXPECT_FALSE(text->At(none)) << none;
  }
}

TEST(JsonText, SaysWhereItIsNoJson) {
  EXPECT_EQ(Error(""), "is not JSON at byte 0");
  EXPECT_EQ(Error("[1,]"), "is not JSON at byte 3");
  EXPECT_EQ(Error("{\"a\" 1}"), "is not JSON at byte 5");
  EXPECT_EQ(Error("{,}"), "is not JSON at byte 1");
  EXPECT_EQ(Error("[1"), "is not JSON at byte 2");
  EXPECT_EQ(Error("1 1"), "is not JSON at byte 2");
  EXPECT_EQ(Error("\"a\tb\""), "is not JSON at byte 2");
  EXPECT_EQ(Error("\"\\q\""), "is not JSON at byte 2");
  EXPECT_EQ(Error(std::string_view("1\0", 2)), "is not JSON at byte 1");
  EXPECT_EQ(Error("\"\xff\""), "is not UTF-8 at byte 1");
  EXPECT_EQ(Error("{\"a\":1,\"\\u0061\":2}"), "has a key twice in one object");
  EXPECT_EQ(Error("\"\\ud83d\""), "has half of a surrogate pair before byte 7");
  EXPECT_EQ(Error(std::string(101, '[')), "is nested over 100 deep");
  EXPECT_EQ(Error(std::string((1 << 20) + 1, ' ')), "is over 1048576 bytes");
  for (const char* number : {"01", ".5", "1.", "1e", "+1", "-", "1e+", "NaN", "tru"}) {
    EXPECT_FALSE(Parse(number).ok()) << number;
  }
}

TEST(JsonText, AnAnswerMayHaveAKeyTwiceAndHalfAPair) {
  const auto text = Parse(R"({"a":1,"b":"\ud83d","a":2})", /*strict=*/false);
  ASSERT_TRUE(text.ok());
  const std::vector<uint32_t> members = text->SortedMembers(0);
  ASSERT_EQ(members.size(), 2U);
  EXPECT_EQ((*text)[members[0]].text, "2");
}

TEST(JsonText, IsNestedWithoutRecursion) {
  constexpr size_t kDeep = 1'000'000;
  std::string deep(kDeep, '[');
  deep.append(kDeep, ']');
  const auto text = JsonText::Parse(deep, {.max_bytes = deep.size(), .max_depth = kDeep});
  ASSERT_TRUE(text.ok());
  EXPECT_TRUE(JsonEqual(*text, 0, *text, 0));
}

TEST(JsonText, EqualIsWhatMeansTheSame) {
  EXPECT_TRUE(Equal(R"({"a":[1,{}],"b":null})", R"({"b":null,"a":[1.0,{}]})"));
  EXPECT_FALSE(Equal("1", "true"));
  EXPECT_FALSE(Equal("0", "false"));
  EXPECT_FALSE(Equal("[1]", "[1,1]"));
  EXPECT_FALSE(Equal("[1,1]", "[1]"));
  EXPECT_FALSE(Equal(R"({"a":1})", R"({"b":1})"));
  EXPECT_TRUE(Equal(R"({"a":1,"a":2})", R"({"a":2})"));
  EXPECT_FALSE(Equal(R"("a")", R"("A")"));
}

TEST(JsonNumber, WholeNumbersAreExactOfAnySize) {
  EXPECT_GT(Order("12345678901234567891", "12345678901234567890"), 0);
  EXPECT_LT(Order("-12345678901234567891", "-12345678901234567890"), 0);
  EXPECT_GT(Order("9007199254740993", "9007199254740992.0"), 0);
  EXPECT_EQ(Order("9007199254740992", "9007199254740992.0"), 0);
  EXPECT_EQ(Order("-0", "0"), 0);
  EXPECT_EQ(Order("1", "1.0"), 0);
  EXPECT_LT(Order("1" + std::string(400, '0'), "1e999"), 0);
  EXPECT_GT(Order("1" + std::string(300, '0'), "1e299"), 0);
  EXPECT_LT(Order("0.1", "1"), 0);
  EXPECT_TRUE(Number("1" + std::string(400, '4')).IsMultipleOf(2));
  EXPECT_FALSE(Number("77777777777777777777777778").IsMultipleOf(7));
  EXPECT_TRUE(Number("-14.0").IsMultipleOf(7));
  EXPECT_FALSE(Number("14.5").IsMultipleOf(1));
}

TEST(JsonNumber, SaysWhatIsWholeAndWhatFits) {
  EXPECT_TRUE(Number("1e2").IsWhole());
  EXPECT_FALSE(Number("1e-2").IsWhole());
  EXPECT_FALSE(Number("1e999").IsWhole());
  EXPECT_EQ(Number("-9223372036854775808").Int64(), INT64_MIN);
  EXPECT_EQ(Number("9223372036854775808").Int64(), std::nullopt);
  EXPECT_EQ(Number("4.0").Int64(), 4);
  EXPECT_EQ(Number("1e17").Int64(), std::nullopt);
}

}  // namespace
}  // namespace eta::schema
