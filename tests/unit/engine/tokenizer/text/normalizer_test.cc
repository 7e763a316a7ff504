#include "engine/tokenizer/text/normalizer.h"

#include <chrono>
#include <string>

#include "engine/tokenizer/text/unicode.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

MarkedText Apply(const Normalizer& normalizer, MarkedText text) {
  RegexRun run(text.text.size());
  const absl::Status status = normalizer.Apply(text, run);
  EXPECT_TRUE(status.ok()) << status;
  return text;
}
std::string Apply(const std::unique_ptr<const Normalizer>& normalizer, const std::string& text) {
  return Apply(*normalizer, {.text = text}).text;
}
std::string Form(NormalForm form, const std::string& text) {
  return Apply(MakeNormalForm(form), text);
}

TEST(NormalForm, ComposesAndDecomposes) {
  EXPECT_EQ(Form(NormalForm::kNfc, "cafe\xCC\x81 x"), "caf\xC3\xA9 x");
  EXPECT_EQ(Form(NormalForm::kNfd, "caf\xC3\xA9 x"), "cafe\xCC\x81 x");
  EXPECT_EQ(Form(NormalForm::kNfc, "\xE2\x84\xAB\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"),
            "\xC3\x85\xEA\xB0\x81")
      << "a singleton, and Hangul";
  EXPECT_EQ(Form(NormalForm::kNfkc, "\xEF\xAC\x81\xEF\xBC\xA1\xEF\xBE\x8A\xEF\xBE\x9F"),
            "fiA\xE3\x83\x91")
      << "with what composes only once it is decomposed";
  EXPECT_EQ(Form(NormalForm::kNfkd, "\xEF\xAC\x81\xC3\xA9"), "fie\xCC\x81");
  EXPECT_EQ(Form(NormalForm::kNfc, "plain \n text"), "plain \n text");
  EXPECT_EQ(Form(NormalForm::kNfc, ""), "");
  EXPECT_EQ(Form(NormalForm::kNfc, "\xCC\x81"), "\xCC\x81") << "a mark alone";
}

TEST(NormalForm, OrdersMarksInLittleTime) {
  EXPECT_EQ(Form(NormalForm::kNfd, "a\xCC\x81\xCC\xA3"), "a\xCC\xA3\xCC\x81");
  std::string marks = "a";
  for (int i = 0; i < 200'000; ++i) marks += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Form(NormalForm::kNfd, marks).size(), marks.size());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10))
      << "the square of their number would take hours";
}

TEST(Normalizer, LowercaseIsOfCharacters) {
  EXPECT_EQ(Apply(MakeLowercase(), "AbC\xC3\x89\xC4\xB0\xE2\x84\xAA"), "abc\xC3\xA9i\xCC\x87k");
}

TEST(Normalizer, StripTakesWhiteSpaceOnlyAtTheEnds) {
  EXPECT_EQ(Apply(MakeStrip(true, true),
                  " \t\xE3\x80\x80"
                  "a b\n"),
            "a b");
  EXPECT_EQ(Apply(MakeStrip(true, false), " a "), "a ");
  EXPECT_EQ(Apply(MakeStrip(false, true), " a "), " a");
  EXPECT_EQ(Apply(MakeStrip(true, true), " \n "), "");
}

TEST(Normalizer, PrependAndReplace) {
  EXPECT_EQ(Apply(MakePrepend("_"), "a"), "_a");
  EXPECT_EQ(Apply(MakePrepend("_"), ""), "");
  EXPECT_EQ(Apply(MakeReplace(std::string("ab"), "x"), "ababb"), "xxb");
  EXPECT_EQ(Apply(MakeReplace(std::string("a"), ""), "aba"), "b");
  EXPECT_EQ(Apply(MakeReplace(*Regex::Compile(" {2,}"), "-"), "a   b  "), "a-b-");
  EXPECT_EQ(Apply(MakeReplace(*Regex::Compile(" "), "-"), ""), "");
}

TEST(Normalizer, ABombInAReplaceIsAnError) {
  MarkedText text{.text = std::string(60, 'a') + "-b"};
  RegexRun run(text.text.size());
  EXPECT_TRUE(
      absl::IsInvalidArgument(MakeReplace(*Regex::Compile("(a+)+b"), "x")->Apply(text, run)));
}

TEST(Normalizer, MarksFollowTheirBytes) {
  const auto marks = [](const std::unique_ptr<const Normalizer>& normalizer, std::string text,
                        std::string from) {
    for (char& mark : from) mark = mark == '1' ? '\1' : '\0';
    std::string to = Apply(*normalizer, {.text = std::move(text), .marks = from}).marks;
    for (char& mark : to) mark = mark != 0 ? '1' : '0';
    return to;
  };
  EXPECT_EQ(marks(MakeReplace(std::string("bb"), "xyz"), "abbc", "0110"), "01110");
  EXPECT_EQ(marks(MakeReplace(std::string("bb"), "xyz"), "abbc", "0100"), "00000")
      << "marked in part is not marked";
  EXPECT_EQ(marks(MakePrepend("__"), "ab", "10"), "1110") << "as what follows";
  EXPECT_EQ(marks(MakeNormalForm(NormalForm::kNfc), "xe\xCC\x81z", "10110"), "1000");
  EXPECT_EQ(marks(MakeNormalForm(NormalForm::kNfc), "xe\xCC\x81z", "11110"), "1110");
  EXPECT_EQ(marks(MakeStrip(true, true), " a ", "010"), "1");
}

TEST(Normalizer, WhetherATextBeginsFollowsToo) {
  const auto begins = [](const std::unique_ptr<const Normalizer>& normalizer, std::string text) {
    return Apply(*normalizer, {.text = std::move(text), .begins_text = true}).begins_text;
  };
  EXPECT_TRUE(begins(MakePrepend("_"), "a"));
  EXPECT_TRUE(begins(MakeStrip(true, true), "a "));
  EXPECT_FALSE(begins(MakeStrip(true, true), " a"));
  EXPECT_TRUE(begins(MakeReplace(std::string("a"), "b"), "a"));
  EXPECT_FALSE(begins(MakeReplace(std::string("a"), ""), "ab"));
}

TEST(Unicode, ClassesAreThoseOfTheirCategories) {
  const CharacterClasses& classes = CharacterClasses::Get();
  EXPECT_EQ(classes('a'), kLowerLetter | kWord);
  EXPECT_EQ(classes('A'), kUpperLetter | kWord);
  EXPECT_EQ(classes('7'), kNumber | kWord);
  EXPECT_EQ(classes('_'), kPunctuation | kWord);
  EXPECT_EQ(classes('$'), kSymbol);
  EXPECT_EQ(classes('\n'), kWhiteSpace | kNewline);
  EXPECT_EQ(classes(0x85), kWhiteSpace);
  EXPECT_EQ(classes(0x4E2D), kOtherLetter | kWord);
  EXPECT_EQ(classes(0x301), kMark | kWord);
  EXPECT_EQ(classes(0xBD), kNumber) << "a fraction is no word";
  EXPECT_EQ(classes(0x200D), kWord) << "a joiner is";
  EXPECT_EQ(classes(0x10FFFF), 0);
}

TEST(Unicode, CharactersAreReadAndWritten) {
  for (const char32_t code :
       {U'\0', U'a', U'\x7F', U'\x80', U'\x7FF', U'\x800', U'\xFFFD', U'\x10000', U'\x10FFFF'}) {
    std::string text = "x";
    AppendUtf8(code, text);
    EXPECT_EQ(CharacterAt(text, 1).code, code);
    EXPECT_EQ(CharacterAt(text, 1).size, text.size() - 1);
    EXPECT_EQ(LastCharacter(text).code, code);
  }
}

}  // namespace
}  // namespace eta
