#include "engine/tokenizer/json/bpe_model.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/tokenizer/json/byte_alphabet.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/engine/tokenizer_json.h"

namespace eta {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Merges = std::vector<std::pair<std::string, std::string>>;

absl::StatusOr<std::unique_ptr<const BpeModel>> Make(const std::vector<std::string>& tokens,
                                                     const Merges& merges, BpeOptions options) {
  const auto file = ParseTokenizerFile(TokenizerJson(tokens, merges).Dump());
  EXPECT_TRUE(file.ok()) << file.status();
  const auto vocabulary = IndexVocabulary(file->tables);
  if (!vocabulary.ok()) return vocabulary.status();
  return BpeModel::Make(file->tables, *vocabulary, std::move(options));
}

std::vector<int32_t> Ids(const BpeModel& model, const std::string& text, bool with_cache = true) {
  BpeScratch scratch(with_cache);
  std::vector<int32_t> first, again;
  EXPECT_EQ(model.Encode(text, scratch, first), std::nullopt) << text;
  EXPECT_EQ(model.Encode(text, scratch, again), std::nullopt) << text;
  EXPECT_EQ(first, again) << "from the cache";
  return first;
}

std::optional<size_t> NoTokenAt(const BpeModel& model, const std::string& text) {
  BpeScratch scratch(/*with_cache=*/true);
  std::vector<int32_t> ids;
  const auto place = model.Encode(text, scratch, ids);
  EXPECT_EQ(model.Encode(text, scratch, ids), place) << "nothing of it is kept";
  return place;
}

TEST(BpeModel, EarlierMergesComeFirstAndTheLastOfEqualOnesCounts) {
  const std::vector<std::string> tokens = {"a", "b", "c", "ab", "bc", "abc"};
  const auto first = Make(tokens, {{"a", "b"}, {"b", "c"}, {"ab", "c"}}, {}).value();
  EXPECT_THAT(Ids(*first, "abcbc"), ElementsAre(5, 4));
  const auto twice = Make(tokens, {{"a", "b"}, {"b", "c"}, {"a", "b"}}, {}).value();
  EXPECT_THAT(Ids(*twice, "abc"), ElementsAre(0, 4)) << "a b is now the last merge";
}

TEST(BpeModel, APieceThatIsATokenNeedsNoMerges) {
  const std::vector<std::string> tokens = {"a", "b", "ab", "abab"};
  BpeOptions options{.ignore_merges = true};
  const auto model = Make(tokens, {{"a", "b"}}, options).value();
  EXPECT_THAT(Ids(*model, "abab"), ElementsAre(3));
  EXPECT_THAT(Ids(*model, "ababa"), ElementsAre(2, 2, 0));
  options.ignore_merges = false;
  EXPECT_THAT(Ids(**Make(tokens, {{"a", "b"}}, options), "abab"), ElementsAre(2, 2));
}

TEST(BpeModel, CharactersOutsideOfTheVocabulary) {
  const std::vector<std::string> tokens = {"<unk>", "a", "b", "ab"};
  const Merges merges = {{"a", "b"}};
  EXPECT_EQ(NoTokenAt(**Make(tokens, merges, {}), "axyb"), 1u) << "nothing gets lost";
  EXPECT_EQ((*Make(tokens, merges, {}))->max_token_bytes(), 5u);
  BpeOptions options{.unk_token = "<unk>"};
  EXPECT_THAT(Ids(**Make(tokens, merges, options), "axyb"), ElementsAre(1, 0, 0, 2));
  EXPECT_EQ((*Make(tokens, merges, options))->max_token_bytes(), 5u);
  options.fuse_unk = true;
  EXPECT_THAT(Ids(**Make(tokens, merges, options), "axybx"), ElementsAre(1, 0, 2, 0));
  EXPECT_EQ((*Make(tokens, merges, options))->max_token_bytes(), 0u);
}

TEST(BpeModel, TellsTheFirstPlaceThatNoTokenStandsFor) {
  const std::vector<std::string> tokens = {"a", "b", "ab", "<0xC3>"};
  const Merges merges = {{"a", "b"}};
  const std::string words(80, 'a');  // cut before it is merged
  for (BpeOptions options :
       {BpeOptions{}, BpeOptions{.byte_level = true}, BpeOptions{.byte_fallback = true},
        BpeOptions{.ignore_merges = true}}) {
    const auto model = Make(tokens, merges, options).value();
    EXPECT_EQ(NoTokenAt(*model, "\x04"), 0u);
    EXPECT_EQ(NoTokenAt(*model, "abb\xC3\xA9x"), 3u) << "not all bytes of it are tokens";
    EXPECT_EQ(NoTokenAt(*model, words + "x" + words + "x"), words.size());
    EXPECT_EQ(NoTokenAt(*model, "abab"), std::nullopt) << "the scratch is as before";
  }
}

TEST(BpeModel, BytesOfACharacterWhereAllOfThemAreThere) {
  const std::vector<std::string> tokens = {"<0xC3>", "<0xA9>", "<unk>", "a"};
  const BpeOptions options{.byte_fallback = true, .fuse_unk = true, .unk_token = "<unk>"};
  const auto some = Make(tokens, {}, options).value();
  EXPECT_THAT(Ids(*some,
                  "a\xC3\xA9\xC3\xA8"
                  "a"),
              ElementsAre(3, 0, 1, 2, 3));
  EXPECT_THAT(Ids(*some,
                  "\xC3\xA8\xC3\xA9"
                  "a"),
              ElementsAre(0, 1, 2, 3))
      << "as the model of reference: the unknown token waits for a known character";
}

TEST(BpeModel, BytesThatStandForCharacters) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelled;
    AppendUtf8(CharacterOfByte(static_cast<uint8_t>(byte)), spelled);
    tokens.push_back(spelled);
  }
  tokens.push_back(tokens[' '] + "a");
  const auto model = Make(tokens, {{tokens[' '], "a"}}, {.byte_level = true}).value();
  EXPECT_THAT(Ids(*model, " a\xC3\xA9 b"), ElementsAre(256, 0xC3, 0xA9, ' ', 'b'));
  EXPECT_EQ(model->max_token_bytes(), 2u);
}

// The definition, by looking for the best pair again and again.
std::vector<std::string> Naive(const std::string& text, const Merges& merges) {
  std::vector<std::string> symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  for (;;) {
    size_t best = merges.size(), place = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (size_t rank = 0; rank < best; ++rank) {
        if (symbols[i] == merges[rank].first && symbols[i + 1] == merges[rank].second) {
          best = rank;
          place = i;
        }
      }
    }
    if (best == merges.size()) return symbols;
    symbols[place] += symbols[place + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(BpeModel, DoesWhatTheDefinitionSays) {
  std::mt19937 random(9);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c", "d"};
    Merges merges;
    for (int i = 0; i < 12; ++i) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end()) continue;
      tokens.push_back(left + right);
      merges.emplace_back(left, right);
    }
    for (const bool byte_level : {false, true}) {
      const auto model = Make(tokens, merges, {.byte_level = byte_level}).value();
      for (const size_t size : {1, 5, 40, 200}) {
        std::string text;
        for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + random() % 4);
        std::vector<std::string> ours;
        for (const int32_t id : Ids(*model, text, random() % 2 == 0)) {
          ours.push_back(tokens[static_cast<size_t>(id)]);
        }
        EXPECT_EQ(ours, Naive(text, merges)) << text;
      }
    }
  }
}

// bad input: Tokenizer files | tokenizer.json: merges of or into tokens that are not there |
//   INVALID_ARGUMENT, the merge named
TEST(BpeModel, VocabulariesAndMergesThatMakeNoSense) {
  const auto error = [](const std::vector<std::string>& tokens, const Merges& merges,
                        BpeOptions options = {}) {
    const absl::Status status = Make(tokens, merges, std::move(options)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error({"a"}, {{"x", "a"}}), HasSubstr("merges[0]: its left part"));
  EXPECT_THAT(error({"a"}, {{"a", "x"}}), HasSubstr("merges[0]: its right part"));
  EXPECT_THAT(error({"a", "b"}, {{"a", "b"}}), HasSubstr("merges[0]: what it makes"));
  EXPECT_THAT(error({"a"}, {{"a", ""}}), HasSubstr("merges[0]: one of its parts is empty"))
      << "it would lead back to a";
  EXPECT_THAT(error({"a"}, {}, {.unk_token = "<unk>"}), HasSubstr("unk_token"));
  const auto twice = ParseTokenizerFile(R"({"model":{"vocab":{"a":1,"b":1}}})").value();
  EXPECT_THAT(std::string(IndexVocabulary(twice.tables).status().message()),
              HasSubstr("id 1 is there twice"));
  const auto same = ParseTokenizerFile(R"({"model":{"vocab":{"a":1,"\u0061":2}}})").value();
  EXPECT_THAT(std::string(IndexVocabulary(same.tables).status().message()),
              HasSubstr("token of id 2 is there twice"));
}

TEST(WordCache, KeepsShortWordsInItsPlacesAndNoMore) {
  WordCache cache;
  const std::vector<int32_t> ids = {1, 2, 3};
  EXPECT_TRUE(cache.Find("word").empty());
  cache.Keep("word", ids);
  EXPECT_THAT(cache.Find("word"), ElementsAre(1, 2, 3));
  EXPECT_TRUE(cache.Find("wore").empty());
  cache.Keep(std::string(WordCache::kMaxWordBytes + 1, 'a'), ids);
  EXPECT_TRUE(cache.Find(std::string(WordCache::kMaxWordBytes + 1, 'a')).empty());
  cache.Keep("long", std::vector<int32_t>(WordCache::kMaxIds + 1));
  EXPECT_TRUE(cache.Find("long").empty());
  size_t kept = 0;
  for (int i = 0; i < 200'000; ++i) cache.Keep(absl::StrCat(i), ids);
  for (int i = 0; i < 200'000; ++i) kept += cache.Find(absl::StrCat(i)).empty() ? 0 : 1;
  EXPECT_LE(kept, WordCache::kPlaces);
  EXPECT_GT(kept, WordCache::kPlaces / 4);
}

}  // namespace
}  // namespace eta
