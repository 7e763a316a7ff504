#include "engine/tokenizer/text_stream.h"

#include <random>

#include "engine/base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/piece_file.h"

namespace eta {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

class TextStreamTest : public testing::Test {
 protected:
  TextStreamTest() { Load(/*dummy_prefix=*/true); }

  // Pieces: every byte, and a few words.
  void Load(bool dummy_prefix) {
    PieceFile file;
    file.dummy_prefix = dummy_prefix;
    names_.clear();
    for (const char* text :
         {"\xE2\x96\x81", "\xE2\x96\x81the",
          "\xE2\x96\x81"
          "end",
          "END", "E", "N", "D", "EN", "a", "b", "ab", "abab", "\xC3\xA9", "x\nST", "OP!"}) {
      file.entries.push_back({text, 0, 1});
    }
    entries_ = file.first_entry();
    for (const auto& entry : file.entries) names_.push_back(entry.text);
    ModelConfig config;
    config.vocab_size = file.size();
    tokenizer_ = *Tokenizer::Load({.sentencepiece_model = file.Serialize()}, config);
  }

  int32_t Id(const std::string& piece) const {
    for (size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] == piece) return entries_ + static_cast<int32_t>(i);
    }
    ADD_FAILURE() << "no piece " << piece;
    return 0;
  }
  static int32_t Byte(uint8_t byte) { return 3 + byte; }
  TextStream Stream(std::vector<std::string> stops = {}, bool include_stop = false,
                    std::vector<int32_t> prompt = {1}) const {
    return TextStream(*tokenizer_, prompt, std::move(stops), include_stop);
  }
  int32_t RandomId(std::mt19937& random) const {
    // Words as often as bytes; of the bytes mostly those that make or break characters.
    constexpr uint8_t kBytes[] = {'a',  'b',  ' ',  0xC3, 0xA9, 0xE2, 0x82,
                                  0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xFF};
    switch (random() % 8) {
      case 0:
        return static_cast<int32_t>(random() % 3);
      case 1:
      case 2:
      case 3:
        return Byte(kBytes[random() % std::size(kBytes)]);
      default:
        return entries_ + static_cast<int32_t>(random() % names_.size());
    }
  }

  std::vector<std::string> names_;
  int32_t entries_ = 0;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(TextStreamTest, ShowsSpecialTokensAsTheVocabularySpellsThem) {
  const std::vector<int32_t> ids = {1, Id("\xE2\x96\x81the"), 2, Byte(0xC3), 2, Byte(0xA9)};
  EXPECT_EQ(tokenizer_->Decode(ids), "the\xC3\xA9");
  const std::string shown = std::string("<s>the</s>") + kReplacement + "</s>" + kReplacement;
  EXPECT_EQ(tokenizer_->Decode(ids, /*show_special=*/true), shown);
  TextStream stream(*tokenizer_, {}, {}, /*include_stop=*/false, /*show_special=*/true);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id).text;
  EXPECT_EQ(text + stream.Flush(), shown);
  TextStream stopped(*tokenizer_, {}, {"e</s"}, /*include_stop=*/true, /*show_special=*/true);
  text.clear();
  for (const int32_t id : ids) text += stopped.Push(id).text;
  EXPECT_EQ(text, "<s>the</s");
}

TEST_F(TextStreamTest, TellsThePlacesOfMarks) {
  const int32_t mark = 2;
  TextStream stream(*tokenizer_, {}, {"END"}, /*include_stop=*/false, /*show_special=*/false,
                    {mark});
  EXPECT_EQ(stream.Push(Id("EN")).text, "");
  TextStream::Emission emission = stream.Push(mark);
  EXPECT_EQ(emission.text, "EN") << "a stop string does not go on across a mark";
  EXPECT_TRUE(emission.marked);
  emission = stream.Push(Id("D"));
  EXPECT_EQ(emission.text, "D");
  EXPECT_FALSE(emission.marked);
  EXPECT_FALSE(stream.Push(1).marked) << "another special token";
  EXPECT_EQ(stream.Push(Byte(0xE2)).text, "");
  emission = stream.Push(mark);
  EXPECT_EQ(emission.text, kReplacement) << "nor does a character";
  EXPECT_TRUE(emission.marked);
  EXPECT_FALSE(stream.Push(Id("END")).marked);
  EXPECT_FALSE(stream.Push(mark).marked) << "the text has ended";
}

TEST_F(TextStreamTest, ACharacterAppearsWithItsLastByte) {
  TextStream stream = Stream();
  EXPECT_EQ(stream.Push(Byte(0xE2)).text, "");
  EXPECT_EQ(stream.Push(Byte(0x82)).text, "");
  EXPECT_EQ(stream.Push(Byte(0xAC)).text, "\xE2\x82\xAC");
}

TEST_F(TextStreamTest, BytesThatMakeNoCharacterAreReplacedAsSoonAsThatIsCertain) {
  TextStream stream = Stream();
  EXPECT_EQ(stream.Push(Byte(0xFF)).text, kReplacement);
  EXPECT_EQ(stream.Push(Byte(0xE2)).text, "");
  EXPECT_EQ(stream.Push(Id("a")).text, std::string(kReplacement) + "a");
  EXPECT_EQ(stream.Push(Byte(0xC3)).text, "");
  EXPECT_EQ(stream.Flush(), kReplacement);
}

TEST_F(TextStreamTest, TextThatMayBecomeAStopStringIsHeldBack) {
  TextStream stream = Stream({"END"});
  EXPECT_EQ(stream.Push(Id("a")).text, "a");
  EXPECT_EQ(stream.Push(Id("EN")).text, "");
  EXPECT_EQ(stream.Push(Id("E")).text, "EN");
  EXPECT_EQ(stream.Push(Id("N")).text, "");
  EXPECT_EQ(stream.Flush(), "EN");
}

TEST_F(TextStreamTest, AStopStringAcrossPiecesEndsTheText) {
  TextStream stream = Stream({"\nSTOP", "zzz"});
  EXPECT_EQ(stream.Push(Id("a")).text, "a");
  EXPECT_EQ(stream.Push(Id("x\nST")).text, "x");
  const TextStream::Emission last = stream.Push(Id("OP!"));
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.matched_stop, "\nSTOP");
  EXPECT_EQ(stream.Push(Id("a")).text, "");
  EXPECT_EQ(stream.Flush(), "");
}

TEST_F(TextStreamTest, TheStopStringIsKeptWhenAskedFor) {
  TextStream stream = Stream({"END"}, true);
  EXPECT_EQ(stream.Push(Id("EN")).text, "");
  const TextStream::Emission last = stream.Push(Id("D"));
  EXPECT_EQ(last.text, "END");
  EXPECT_EQ(last.matched_stop, "END");
}

TEST_F(TextStreamTest, TheStopThatEndsFirstWinsAndTheLongerOfTwo) {
  TextStream first = Stream({"babab", "ab"});
  EXPECT_EQ(first.Push(Id("b")).text, "");
  const TextStream::Emission short_one = first.Push(Id("abab"));
  EXPECT_EQ(short_one.text, "b");
  EXPECT_EQ(short_one.matched_stop, "ab");

  TextStream both = Stream({"ab", "bab"});
  both.Push(Id("b"));
  EXPECT_EQ(both.Push(Id("ab")).matched_stop, "bab");
}

TEST_F(TextStreamTest, EmptyStopStringsNeverMatch) {
  TextStream stream = Stream({""});
  EXPECT_EQ(stream.Push(Id("a")).text, "a");
  EXPECT_EQ(stream.matched_stop(), std::nullopt);
}

TEST_F(TextStreamTest, TheSpaceBeforeATextIsTakenOffOnlyWhereTheTextBegins) {
  EXPECT_EQ(Stream({}, false, {1}).Push(Id("\xE2\x96\x81the")).text, "the");
  EXPECT_EQ(Stream({}, false, {}).Push(Id("\xE2\x96\x81the")).text, "the");
  EXPECT_EQ(Stream({}, false, {1, Id("a")}).Push(Id("\xE2\x96\x81the")).text, " the");
  EXPECT_EQ(Stream({}, false, {1, Id("\xE2\x96\x81")}).Push(Id("\xE2\x96\x81the")).text, " the");
}

TEST_F(TextStreamTest, ACharacterThatThePromptLeftOpenBelongsToTheAnswer) {
  TextStream stream = Stream({}, false, {1, Byte(0xE2), 2, Byte(0x82)});
  EXPECT_EQ(stream.Push(Byte(0xAC)).text, "\xE2\x82\xAC");
}

// The answer by definition: decode everything, take the prompt's text off, cut at the first stop.
struct Expected {
  std::string text;
  std::optional<std::string> stop;
};
Expected OneShot(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                 const std::vector<int32_t>& answer, const std::vector<std::string>& stops,
                 bool include_stop) {
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), answer.begin(), answer.end());
  std::string bytes, prompt_text;
  bool first = true;
  for (const int32_t id : prompt) {
    bytes += first ? tokenizer.FirstPieceBytes(id) : tokenizer.PieceBytes(id);
    first = first && tokenizer.PieceBytes(id).empty();
  }
  Utf8Assembler().Append(bytes, prompt_text);
  std::string text = tokenizer.Decode(all);
  EXPECT_TRUE(text.starts_with(prompt_text));
  text.erase(0, prompt_text.size());
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop) && stop.size() > longest.size())
        longest = stop;
    }
    if (!longest.empty())
      return {text.substr(0, include_stop ? end : end - longest.size()), longest};
  }
  return {text, std::nullopt};
}

TEST_F(TextStreamTest, AnyIdsGiveTheTextOfDecodingThemAtOnce) {
  for (const bool dummy_prefix : {true, false}) {
    Load(dummy_prefix);
    std::mt19937 random(dummy_prefix ? 5 : 6);
    const std::vector<std::string> candidates = {
        "ab", "bab", "END", "a\xC3\xA9", kReplacement, "b ", " the", "\xE2\x82\xAC", "Eab", "bb"};
    for (int i = 0; i < 20'000; ++i) {
      std::vector<int32_t> prompt, answer;
      std::vector<std::string> stops;
      for (size_t n = random() % 4; n > 0; --n) prompt.push_back(RandomId(random));
      for (size_t n = random() % 14; n > 0; --n) answer.push_back(RandomId(random));
      for (size_t n = random() % 4; n > 0; --n)
        stops.push_back(candidates[random() % candidates.size()]);
      const bool include_stop = random() % 2 == 0;
      const Expected expected = OneShot(*tokenizer_, prompt, answer, stops, include_stop);

      TextStream stream = Stream(stops, include_stop, prompt);
      std::string text;
      for (const int32_t id : answer) {
        const TextStream::Emission emission = stream.Push(id);
        EXPECT_EQ(FirstInvalidUtf8(emission.text), std::nullopt);
        text += emission.text;
        ASSERT_TRUE(expected.text.starts_with(text));
        if (emission.matched_stop) break;
      }
      text += stream.Flush();
      ASSERT_EQ(text, expected.text)
          << testing::PrintToString(answer) << testing::PrintToString(stops);
      ASSERT_EQ(stream.matched_stop(), expected.stop);
    }
  }
}

TEST(TextStream, AnAnswerOfTheEmbeddedTokenizerStreamsUnchanged) {
  ModelConfig config;
  config.vocab_size = 8192;
  const auto tokenizer = *Tokenizer::Load(
      {.sentencepiece_model = ReadFile(ETA_SOURCE_DIR "/models/eta-27m/tokenizer.model")}, config);
  const std::string text =
      ReadFile(ETA_SOURCE_DIR "/models/eta-27m/README.md") + "\xF0\x9F\x98\x80 done";
  const std::vector<int32_t> ids = *tokenizer->Encode(text, false);
  for (const size_t prompt_size : {size_t{0}, size_t{1}, ids.size() / 2, ids.size()}) {
    const std::span<const int32_t> prompt = std::span(ids).first(prompt_size);
    TextStream stream(*tokenizer, prompt, {"never there"}, false);
    std::string answer;
    for (const int32_t id : std::span(ids).subspan(prompt_size)) answer += stream.Push(id).text;
    answer += stream.Flush();
    EXPECT_EQ(tokenizer->Decode(prompt) + answer, text);
  }
}

}  // namespace
}  // namespace eta
