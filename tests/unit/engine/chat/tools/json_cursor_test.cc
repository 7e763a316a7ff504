#include "engine/chat/tools/json_cursor.h"

#include <random>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

bool IsObject(const std::string& text, size_t max_depth = 64) {
  JsonCursor cursor(max_depth);
  for (const char c : text) {
    if (!cursor.Feed(c)) return false;
  }
  return cursor.done();
}

TEST(JsonCursor, TakesWhatIsAnObject) {
  for (const char* good :
       {"{}", " { } ", R"({"a":[]})", R"({"a": [1, -0, 0.5e-7, 1E+2, true, false, null]})",
        R"({"":{"b":"\" \\ \u00e9 \n"}, "c" : [[], {}]})"}) {
    EXPECT_TRUE(IsObject(good)) << good;
  }
  for (const char* bad : {"",
                          "[]",
                          "1",
                          "{",
                          "{} {}",
                          "{}}",
                          R"({"a"})",
                          R"({"a":})",
                          R"({"a":1,})",
                          R"({,})",
                          R"({"a":[1,]})",
                          R"({"a":[})",
                          R"({"a":01})",
                          R"({"a":-})",
                          R"({"a":1.})",
                          R"({"a":.5})",
                          R"({"a":1e})",
                          R"({"a":tru})",
                          R"({"a":nulll})",
                          R"({"a":"\x"})",
                          R"({"a":"\u12g4"})",
                          "{\"a\":\"\n\"}",
                          R"({a:1})",
                          R"({'a':1})",
                          R"({"a":1 2})"}) {
    EXPECT_FALSE(IsObject(bad)) << bad;
  }
}

TEST(JsonCursor, NestsSoDeep) {
  EXPECT_TRUE(IsObject(R"({"a":[{}]})", 3));
  EXPECT_FALSE(IsObject(R"({"a":[{}]})", 2));
}

TEST(JsonCursor, AgreesWithAParserOnTextsByChance) {
  std::mt19937 random(1);
  const std::string parts[] = {"{", "}", "[", "]", ",",    ":",    "\"a\"", "\"\\u0041\"", "1", "0",
                               "-", ".", "e", "+", "true", "null", " ",     "\"",          "\\"};
  int good = 0;
  for (int i = 0; i < 200000; ++i) {
    std::string text = "{\"k\":";
    for (size_t n = random() % 7; n > 0; --n) text += parts[random() % std::size(parts)];
    text += "}";
    const nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
    ASSERT_EQ(IsObject(text), parsed.is_object()) << text;
    good += parsed.is_object() ? 1 : 0;
  }
  EXPECT_GT(good, 1000);
}

}  // namespace
}  // namespace eta
