#include "engine/format/schema/patterns/pattern.h"

#include <string>

#include "engine/format/schema/patterns/string_formats.h"
#include "gtest/gtest.h"

namespace eta::schema {
namespace {

constexpr char kPlain[] = "[\\x20-\\x21\\x23-\\x5b\\x5d-\\u{d7ff}\\u{e000}-\\u{10ffff}]";

bool Matches(std::string_view pattern, std::string_view text) {
  const auto parsed = Pattern::Parse(pattern);
  EXPECT_TRUE(parsed.ok()) << pattern << ": " << parsed.status();
  return parsed.ok() && parsed->Matches(text);
}

std::string Whole(std::string_view pattern, const Lengths& lengths = {}) {
  const auto parsed = Pattern::Parse(pattern);
  EXPECT_TRUE(parsed.ok()) << pattern << ": " << parsed.status();
  return parsed.ok() ? parsed->WholeText(lengths).value_or("none") : "";
}

std::string PatternError(const std::string& pattern) {
  return std::string(Pattern::Parse(pattern).status().message());
}

TEST(Pattern, IsFoundAnywhereUnlessItIsAnchored) {
  EXPECT_TRUE(Matches("b", "abc"));
  EXPECT_FALSE(Matches("b", "acc"));
  EXPECT_FALSE(Matches("^b", "abc"));
  EXPECT_FALSE(Matches("b$", "abc"));
  EXPECT_FALSE(Matches("b$", "b\n"));
  EXPECT_TRUE(Matches("^a|c$", "bc"));
  EXPECT_TRUE(Matches("", "x"));
  EXPECT_FALSE(Matches("^$", "x"));
}

TEST(Pattern, CountsGroupsAndChoices) {
  EXPECT_TRUE(Matches("^(a|bc|){2,3}x$", "abcx"));
  EXPECT_TRUE(Matches("^(a|bc|){2,3}x$", "x"));
  EXPECT_FALSE(Matches("^(a|bc|){2,3}x$", "aaaax"));
  EXPECT_TRUE(Matches("^a{2}b{0}c{1,}d??e*?f+$", "aacceef"));
  EXPECT_FALSE(Matches("^(?:ab)+$", "aba"));
  EXPECT_TRUE(Matches("^((a*)*)*$", "aaa"));
  EXPECT_FALSE(Matches("^(a{3}){2,}$", "aaaaaaa"));
  EXPECT_TRUE(Matches("^(a?){3}$", ""));
}

TEST(Pattern, ClassesAreThoseOfEcma262) {
  EXPECT_TRUE(Matches("^[a-c\\d_-]+$", "b7_-"));
  EXPECT_TRUE(Matches("^[^a-c]$", "\u00e9"));
  EXPECT_TRUE(Matches("^.$", "\U0001F600"));
  EXPECT_FALSE(Matches("^.$", "\u2028"));
  EXPECT_FALSE(Matches("^\\w$", "\u00e9"));
  EXPECT_TRUE(Matches("^\\W$", "\u00e9"));
  EXPECT_TRUE(Matches("^\\s$", "\u00a0"));
  EXPECT_FALSE(Matches("^\\S$", "\u3000"));
  EXPECT_TRUE(Matches("^\\x41\\u00e9\\t\\/\\.\\-$", "A\u00e9\t/.-"));
  EXPECT_TRUE(Matches("^[\\]\\\\^]+$", "]\\^"));
  EXPECT_TRUE(Matches("^[-a]+[b-]$", "a--"));
  EXPECT_TRUE(Matches("^[\\D]$", "x"));
}

TEST(Pattern, IsSaidAnewWithoutWhatJsonEscapes) {
  EXPECT_EQ(Whole("^ab?$"), "([a][b]{0,1})");
  EXPECT_EQ(Whole("b"), std::string("(") + kPlain + "*[b]" + kPlain + "*)");
  EXPECT_EQ(Whole("^(x|\")$"), "(([x]))");
  EXPECT_EQ(Whole("^\"$"), "");
  EXPECT_EQ(Whole("^\"*$"), "(())");
  EXPECT_EQ(Whole("^[\\s]$"), Whole("^\\s$"));
}

TEST(Pattern, LengthsAreJoinedWhereTheyFollowOrOneSetIsRepeated) {
  EXPECT_EQ(Whole("^[A-Z]{3}$", {3, 3}), Whole("^[A-Z]{3}$"));
  EXPECT_EQ(Whole("^[a-z]+$", {5, kUnbounded}), "[a-z]{5,}");
  EXPECT_EQ(Whole("^(?:[a-z])*$", {0, 64}), "[a-z]{0,64}");
  EXPECT_EQ(Whole("^[a-z]{2,4}$", {3, 9}), "[a-z]{3,4}");
  EXPECT_EQ(Whole("^[a-z]{2,4}$", {5, 9}), "");
  EXPECT_EQ(Whole("^a+b$", {0, 9}), "none");
  EXPECT_EQ(Whole("a+", {0, 9}), "none");
}

// bad input: Formats of answers | a pattern with lookaround, backreferences, \b, \p, anchors
// inside,
//   bad counts, groups 33 deep, counts over 128, over 1024 steps | INVALID_ARGUMENT, field
//   `format.json_schema`, with what is not known and the JSON pointer
TEST(Pattern, RefusesByNameWhatIsNoRegularLanguageOrTooLong) {
  EXPECT_EQ(PatternError("a(?=b)"), "a group that begins with (? is not known in patterns");
  EXPECT_EQ(PatternError("(?i)a"), "a group that begins with (? is not known in patterns");
  EXPECT_EQ(PatternError("(a)\\1"), "\\1 is not known in patterns");
  EXPECT_EQ(PatternError("\\bx"), "\\b is not known in patterns");
  EXPECT_EQ(PatternError("\\p{L}"), "\\p is not known in patterns");
  EXPECT_EQ(PatternError("\\\u00e9"),
            "a backslash before such a character is not known in patterns");
  EXPECT_EQ(PatternError("a^"), "^ in the middle is not known in patterns");
  EXPECT_EQ(PatternError("(^a)"), "^ in the middle is not known in patterns");
  EXPECT_EQ(PatternError("a$b"), "$ before the end is not known in patterns");
  EXPECT_EQ(PatternError("(a$)"), "$ in a group is not known in patterns");
  EXPECT_EQ(PatternError("*a"), "a count of nothing is not known in patterns");
  EXPECT_EQ(PatternError("a**"), "a count of a count is not known in patterns");
  EXPECT_EQ(PatternError("a{"), "{ that begins no count is not known in patterns");
  EXPECT_EQ(PatternError("a{3,2}"), "a pattern that counts down");
  EXPECT_EQ(PatternError("a{129}"), "a pattern that counts over 128");
  EXPECT_EQ(PatternError("a{99999999999999999999}"), "a pattern that counts over 128");
  EXPECT_EQ(PatternError("((a{100}){100}){100}"), "a pattern of over 1024 steps");
  EXPECT_EQ(PatternError(std::string(60000, 'a')), "a pattern of over 1024 steps");
  EXPECT_EQ(PatternError(std::string(60000, '(')), "a pattern with groups over 32 deep");
  EXPECT_EQ(PatternError("(a"), "a pattern whose '(' is not closed");
  EXPECT_EQ(PatternError("a)"), "a pattern whose ')' is not opened");
  EXPECT_EQ(PatternError("[a"), "a pattern whose '[' is not closed");
  EXPECT_EQ(PatternError("[]"), "an empty class is not known in patterns");
  EXPECT_EQ(PatternError("[b-a]"), "such a range in a class is not known in patterns");
  EXPECT_EQ(PatternError("[a-\\d]"), "such a range in a class is not known in patterns");
  EXPECT_EQ(PatternError("\\x4"), "an escape that is cut short is not known in patterns");
  EXPECT_EQ(PatternError("\\ud83d"), "half of a surrogate pair is not known in patterns");
  EXPECT_EQ(PatternError("a\\"), "a backslash before such a character is not known in patterns");
}

TEST(Pattern, TakesTimeInProportionToTheText) {
  std::string text(200'000, 'a');
  EXPECT_FALSE(Matches("^(a+)+$", text + "b"));
  EXPECT_FALSE(Matches("^(a|aa|a?)*c$", text));
  EXPECT_TRUE(Matches("(x+x+)+y|a$", text));
}

TEST(StringFormats, MatchWhatTheyNameAndNothingElse) {
  const auto matches = [](const char* name, const char* text) {
    const StringFormat format = FindFormat(name);
    return format.pattern != nullptr && format.pattern->Matches(text);
  };
  EXPECT_TRUE(matches("date", "2024-02-29"));
  EXPECT_FALSE(matches("date", "2023-02-29"));
  EXPECT_FALSE(matches("date", "1900-02-29"));
  EXPECT_TRUE(matches("date", "2000-02-29"));
  EXPECT_FALSE(matches("date", "2026-04-31"));
  EXPECT_TRUE(matches("time", "23:59:59.25Z"));
  EXPECT_FALSE(matches("time", "24:00:00Z"));
  EXPECT_TRUE(matches("date-time", "2026-11-28T12:00:00+01:00"));
  EXPECT_TRUE(matches("duration", "P1Y2M3DT4H5M6S"));
  EXPECT_FALSE(matches("duration", "P"));
  EXPECT_TRUE(matches("email", "a.b+c@d-e.org"));
  EXPECT_FALSE(matches("email", "a..b@c.org"));
  EXPECT_TRUE(matches("hostname", "a-b.example.org"));
  EXPECT_FALSE(matches("hostname", "-a.org"));
  EXPECT_TRUE(matches("ipv4", "10.0.255.1"));
  EXPECT_FALSE(matches("ipv4", "01.0.0.1"));
  for (const char* address : {"::", "::1", "1::", "1:2:3:4:5:6:7:8", "1::8", "1:2:3:4:5:6:7::"}) {
    EXPECT_TRUE(matches("ipv6", address)) << address;
  }
  for (const char* none :
       {":", "1:2:3", "1::2::3", "1:2:3:4:5:6:7:8:9", "12345::", "1:2:3:4::5:6:7:8"}) {
    EXPECT_FALSE(matches("ipv6", none)) << none;
  }
  EXPECT_TRUE(matches("uri", "https://example.org:80/a%20b?c=d#e"));
  EXPECT_FALSE(matches("uri", "/a"));
  EXPECT_TRUE(matches("uuid", "123e4567-e89b-12d3-a456-426614174000"));
  EXPECT_TRUE(FindFormat("json-pointer").standard);
  EXPECT_EQ(FindFormat("json-pointer").pattern, nullptr);
  EXPECT_FALSE(FindFormat("phone").standard);
  for (const char* name : {"date", "time", "date-time", "duration", "email", "hostname", "ipv4",
                           "ipv6", "uri", "uuid"}) {
    const StringFormat format = FindFormat(name);
    ASSERT_NE(format.pattern, nullptr) << name;
    EXPECT_NE(format.pattern->WholeText({}).value_or(""), "") << name;
  }
}

}  // namespace
}  // namespace eta::schema
