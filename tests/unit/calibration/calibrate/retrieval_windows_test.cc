// Windows with needles: as long as they are to be, asked for at every depth, and answered by what
// stands behind the same key.

#include "calibration/calibrate/retrieval_windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace eta::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

using Sequences = std::vector<std::vector<int32_t>>;

// A text over `ids` ids from 10 on; low ones are common.
Sequences Text(int32_t ids, size_t tokens) {
  std::vector<int32_t> text = {1};
  uint32_t state = 7;
  while (text.size() < tokens) {
    state = state * 1664525u + 1013904223u;
    const auto a = static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(ids));
    const auto b = static_cast<int32_t>((state >> 16) % static_cast<uint32_t>(ids));
    text.push_back(10 + std::min(a, b));
  }
  return {text};
}

std::vector<NeedleWindow> Make(const Sequences& text, int32_t tokens) {
  return MakeRetrievalWindows(text, {},
                              {.window_tokens = tokens, .beginning = {1}, .reserved_ids = {2, 17}});
}

// Where `part` stands in `whole`.
std::vector<size_t> Places(const std::vector<int32_t>& whole, const std::vector<int32_t>& part) {
  std::vector<size_t> places;
  for (auto at = whole.begin();; ++at) {
    at = std::search(at, whole.end(), part.begin(), part.end());
    if (at == whole.end()) return places;
    places.push_back(static_cast<size_t>(at - whole.begin()));
  }
}

TEST(RetrievalWindows, AnswerWhatStandsBehindTheKey) {
  const auto windows = Make(Text(600, 5000), 1024);
  ASSERT_THAT(windows, SizeIs(2 * kRetrievalDepths));
  std::vector<double> depths[2];
  for (const NeedleWindow& window : windows) {
    ASSERT_THAT(window.tokens, SizeIs(1024));
    EXPECT_EQ(window.tokens.front(), 1);
    EXPECT_EQ(window.answer, 1024 - kValueTokens);
    EXPECT_EQ(window.question, window.answer - kMarkerTokens - kKeyTokens);
    const std::vector<int32_t> asked(window.tokens.begin() + window.question, window.tokens.end());
    const auto places = Places(window.tokens, asked);
    ASSERT_THAT(places, SizeIs(2)) << "the needle, and the question with its answer";
    depths[window.needles > 1 ? 1 : 0].push_back(static_cast<double>(places[0]) / 1024);
    const std::vector<int32_t> marker(asked.begin(), asked.begin() + kMarkerTokens);
    EXPECT_THAT(Places(window.tokens, marker),
                SizeIs(window.needles > 1 ? kNeedlesPerText + 1 : 2));
    const std::set<int32_t> distinct(asked.begin(), asked.end());
    EXPECT_THAT(distinct, SizeIs(asked.size()));
    for (const int32_t reserved : {1, 2, 17}) EXPECT_THAT(asked, Not(Contains(reserved)));
  }
  for (const auto& kind : depths) {
    ASSERT_THAT(kind, SizeIs(kRetrievalDepths));
    EXPECT_LT(*std::min_element(kind.begin(), kind.end()), 0.1);
    EXPECT_GT(*std::max_element(kind.begin(), kind.end()), 0.8);
  }
}

TEST(RetrievalWindows, AreMadeOfTheTextsOwnTokens) {
  const Sequences text = Text(600, 5000);
  const std::set<int32_t> own(text[0].begin(), text[0].end());
  int64_t common = 0;
  for (const NeedleWindow& window : Make(text, 512)) {
    for (const int32_t id : window.tokens) EXPECT_TRUE(own.contains(id)) << id;
    for (auto at = window.tokens.begin() + window.question; at != window.tokens.end(); ++at) {
      common += std::count(text[0].begin(), text[0].end(), *at) > 20 ? 1 : 0;
    }
  }
  EXPECT_EQ(common, 0) << "the commonest make no needles";
}

TEST(RetrievalWindows, AreTheSameTwiceAndDifferFromOneAnother) {
  const Sequences text = Text(600, 5000);
  const auto once = Make(text, 512);
  const auto twice = Make(text, 512);
  std::set<std::vector<int32_t>> all;
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(once[i].tokens, twice[i].tokens);
    all.insert(once[i].tokens);
  }
  EXPECT_THAT(all, SizeIs(once.size()));
}

TEST(RetrievalWindows, TakeTextsOfAFewBytesAndWindowsThatAreShort) {
  // As of a model that knows bytes alone: all ids are used.
  EXPECT_THAT(Make(Text(60, 600), 512), SizeIs(2 * kRetrievalDepths));
  static_assert(LeastWindowTokens(/*beginning=*/1) == 122);
  EXPECT_THAT(Make(Text(600, 5000), 122), SizeIs(2 * kRetrievalDepths));
}

TEST(RetrievalWindows, RepeatNoTextToFillAWindow) {
  const Sequences text = Text(60, 400);
  // One needle with its question, behind the beginning: the rest is all of the text, once.
  constexpr int32_t kFilled = 399 + 1 + 2 * kIdNeedleTokens;
  const auto filled = Make(text, kFilled);
  ASSERT_THAT(filled, SizeIs(2 * kRetrievalDepths));
  std::vector<int32_t> around(filled[0].tokens.begin() + 1,
                              filled[0].tokens.begin() + filled[0].question);
  const std::vector<int32_t> needle(filled[0].tokens.begin() + filled[0].question,
                                    filled[0].tokens.end());
  const auto at = std::search(around.begin(), around.end(), needle.begin(), needle.end());
  ASSERT_NE(at, around.end());
  around.erase(at, at + kIdNeedleTokens);
  EXPECT_EQ(around, std::vector<int32_t>(text[0].begin() + 1, text[0].end()));
  EXPECT_THAT(Make(text, kFilled + 1), IsEmpty()) << "its first token would stand there twice";
}

TEST(RetrievalWindows, AreNoneWhereNoneCanBeMade) {
  EXPECT_THAT(Make(Text(600, 5000), 121), IsEmpty()) << "mostly needles";
  EXPECT_THAT(Make(Text(30, 5000), 512), IsEmpty()) << "too few ids";
  EXPECT_THAT(Make({}, 512), IsEmpty());
  EXPECT_THAT(Make({{1, 1, 1}}, 512), IsEmpty());
}

// Ids of bytes, from 1000 on, behind a bos that windows do not repeat.
absl::StatusOr<std::vector<int32_t>> Bytes(std::string_view text) {
  std::vector<int32_t> ids = {1};
  for (const char c : text) ids.push_back(1000 + static_cast<unsigned char>(c));
  return ids;
}

std::string TextOf(const NeedleWindow& window) {
  std::string text;
  for (const int32_t id : window.tokens) {
    if (id >= 1000) text += static_cast<char>(id - 1000);
  }
  return text;
}

TEST(RetrievalWindows, AskAReaderInSentences) {
  RetrievalOptions options = {.window_tokens = 2048, .beginning = {1}, .tokenize = Bytes};
  const Sequences text = Text(30, 5000);  // too few ids for anything else
  const auto windows = MakeRetrievalWindows(text, {}, options);
  ASSERT_THAT(windows, SizeIs(2 * kRetrievalDepths));
  for (const NeedleWindow& window : windows) {
    ASSERT_THAT(window.tokens, SizeIs(2048));
    EXPECT_EQ(std::count(window.tokens.begin(), window.tokens.end(), 1), 1);
    EXPECT_EQ(window.tokens.size() - static_cast<size_t>(window.answer), 8u)
        << "a space and seven digits";
    const std::string sentences = TextOf(window);
    const std::string number = sentences.substr(sentences.size() - 7);
    const std::string name = sentences.substr(sentences.rfind(" for ") + 5);
    const std::string stated =
        " The special magic number for " + name.substr(0, name.find(" is:")) + " is: " + number;
    EXPECT_THAT(sentences, HasSubstr(stated + ".")) << "the needle";
    EXPECT_TRUE(sentences.ends_with(stated)) << "the question";
  }
  // Without a tokenizer, and where sentences do not fit, needles are made of ids.
  options.tokenize = [](std::string_view) -> absl::StatusOr<std::vector<int32_t>> {
    return absl::FailedPreconditionError("ids only");
  };
  EXPECT_THAT(MakeRetrievalWindows(text, {}, options), IsEmpty());
  EXPECT_THAT(MakeRetrievalWindows(Text(600, 5000), {}, options), SizeIs(2 * kRetrievalDepths));
  options.tokenize = Bytes;
  options.window_tokens = 512;
  const auto ids = MakeRetrievalWindows(Text(600, 5000), {}, options);
  ASSERT_THAT(ids, SizeIs(2 * kRetrievalDepths));
  EXPECT_EQ(TextOf(ids.front()), "");
}

TEST(RetrievalWindows, IdsMayComeFromOtherTextToo) {
  const Sequences other = Text(600, 5000);
  const Sequences text = {std::vector<int32_t>(600, 9)};
  EXPECT_THAT(MakeRetrievalWindows(text, {}, {.window_tokens = 512}), IsEmpty());
  EXPECT_THAT(MakeRetrievalWindows(text, other, {.window_tokens = 512}),
              SizeIs(2 * kRetrievalDepths));
}

}  // namespace
}  // namespace eta::testing
