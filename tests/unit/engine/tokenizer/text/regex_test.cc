#include "engine/tokenizer/text/regex.h"

#include <string>

#include "gtest/gtest.h"

namespace eta {
namespace {

absl::Status RunOver(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  if (!regex.ok()) return regex.status();
  RegexRun run(text.size());
  RegexMatches matches(*regex, text, run);
  while (matches.Next()) {
  }
  return run.status();
}

// bad input: Prompts | a text on which a pattern of the tokenizer takes too many steps, memory or
//   depth | INVALID_ARGUMENT; other texts are served | HardPattern.CostsItsOwnCallAlone
TEST(Regex, APatternThatTriesTooMuchIsAnErrorOfTheText) {
  for (const char* bomb : {"(a+)+b", "(a|aa)+b", "(?:a*)*b", "(?:a|a)*c"}) {
    const absl::Status status = RunOver(bomb, std::string(60, 'a') + "-bc");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bomb << ": " << status;
    EXPECT_EQ(std::string(status.message()).rfind("text: ", 0), 0u) << status;
    EXPECT_TRUE(RunOver(bomb, "abc").ok()) << "other texts go on";
  }
}

TEST(Regex, APatternThatTakesQuadraticTimeIsAnErrorOfALongText) {
  const absl::Status status = RunOver("a*b", std::string(size_t{1} << 20, 'a') + "-b");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(RunOver("a*b", std::string(1000, 'a') + "-b").ok());
}

TEST(Regex, DeepMatchesAreServedOrRefused) {
  const std::string text = std::string(size_t{1} << 20, 'a');
  const absl::Status status = RunOver("(?:a|(?=b)b)*", text);
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(RunOver("(?:a|(?=b)b)*", text.substr(0, 1000)).ok());
}

TEST(Regex, MatchesThatAreFarApartAreFound) {
  const auto regex = Regex::Compile(R"(\p{N}+)").value();
  const std::string text =
      "1" + std::string(500, 'x') + "\xC3\xA9\xC3\xA9" + std::string(17, 'y') + "23";
  RegexRun run(text.size());
  RegexMatches matches(regex, text, run);
  EXPECT_EQ(matches.Next(), (ByteRange{0, 1}));
  EXPECT_EQ(matches.Next(), (ByteRange{text.size() - 2, text.size()}));
  EXPECT_EQ(matches.Next(), std::nullopt);
}

TEST(Regex, EmptyMatchesAreThoseOfOniguruma) {
  const auto regex = Regex::Compile("a*").value();
  const std::string text =
      "b\xC3\xA9"
      "aab";
  RegexRun run(text.size());
  RegexMatches matches(regex, text, run);
  for (const ByteRange& expected :
       {ByteRange{0, 0}, ByteRange{1, 1}, ByteRange{3, 5}, ByteRange{6, 6}}) {
    EXPECT_EQ(matches.Next(), expected);
  }
  EXPECT_EQ(matches.Next(), std::nullopt);
}

}  // namespace
}  // namespace eta
