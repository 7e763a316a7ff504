// Texts as tokens on disk.
#include "training/data/token_cache.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "tests/testing/training/text_case.h"

namespace eta::training {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kTwo[] =
    "{\"text\": \"One document.\"}\n\n{\"id\": 2, \"text\": \"Another one.\"}\n";

class TokenCacheTest : public TextCase {
 protected:
  absl::StatusOr<TokenCache> Cache(const std::string& text) {
    return OpenTokenCache(text, *tokenizer_, CacheOptions());
  }
  std::vector<int32_t> Tokens(const TokenCache& cache) const {
    std::vector<int32_t> tokens(cache.tokens());
    EXPECT_TRUE(cache.Read(0, tokens).ok());
    return tokens;
  }
  std::string CacheFile() const {
    for (const auto& entry : std::filesystem::directory_iterator(Path("tokens"))) {
      return entry.path().string();
    }
    return "";
  }
};

TEST_F(TokenCacheTest, DocumentsStandBetweenBeginAndEnd) {
  const auto cache = Cache(Write("two.jsonl", kTwo)).value();
  std::vector<int32_t> expected;
  for (const char* text : {"One document.", "Another one."}) {
    const auto ids = *tokenizer_->Encode(text, /*add_bos=*/true);
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back(tokenizer_->eos_ids().front());
  }
  EXPECT_EQ(Tokens(cache), expected);
  EXPECT_EQ(cache.header().documents, 2u);
  EXPECT_EQ(cache.header().token_bytes, 2u);
  EXPECT_EQ(expected.front(), tokenizer_->beginning().front());
}

TEST_F(TokenCacheTest, ATextIsTokenizedOnce) {
  const std::string text = Write("two.jsonl", kTwo);
  const auto first = Cache(text).value();
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("tokenizing 'two.jsonl'")));
  notes_.clear();
  // By another name it is the same text.
  const auto again = Cache(Write("other.jsonl", kTwo)).value();
  EXPECT_THAT(notes_, IsEmpty());
  EXPECT_EQ(Tokens(again), Tokens(first));
}

// bad input: eta-train | a token cache that is cut, changed, foreign or another text's | it is made
//   again, and the run goes on | BadTrainTest.ADamagedTokenCacheIsMadeAgain
TEST_F(TokenCacheTest, ADamagedCacheIsMadeAgain) {
  const std::string text = Write("two.jsonl", kTwo);
  const std::vector<int32_t> tokens = Tokens(*Cache(text));
  const std::string whole = ReadFile(CacheFile());
  std::string flipped = whole;
  flipped.back() ^= 1;
  std::string version = whole;
  version[8] = 9;
  std::string other_text = whole;
  other_text[40] ^= 1;
  for (const std::string& damaged :
       {std::string(), whole.substr(0, 100), whole.substr(0, whole.size() - 1), whole + "x",
        std::string("not a cache at all") + whole, flipped, version, other_text}) {
    std::ofstream(CacheFile(), std::ios::binary) << damaged;
    notes_.clear();
    EXPECT_EQ(Tokens(Cache(text).value()), tokens);
    EXPECT_EQ(ReadFile(CacheFile()), whole);
    ASSERT_THAT(notes_, SizeIs(2));
    EXPECT_THAT(notes_[0], HasSubstr("is made again"));
  }
}

// bad input: eta-train | a text that is absent, of another kind, not UTF-8, with a line that is no
//   document, a cut .xz | exit code 2, file and line or document named; no cache is left |
//   BadTrainTest.TextsThatCannotBeRead
TEST_F(TokenCacheTest, WhatCannotBeReadIsNamed) {
  EXPECT_TRUE(absl::IsNotFound(Cache(Path("absent.txt")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Cache(Write("a.pdf", "text")).status()));
  const auto bad = Cache(Write("bad.jsonl", "{\"text\": \"good\"}\n{\"txt\": \"bad\"}\n"));
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("line 2"));
  const auto bytes = Cache(Write("bytes.txt", "caf\xe9"));
  EXPECT_THAT(std::string(bytes.status().message()), HasSubstr("document 1"));
  EXPECT_EQ(CacheFile(), "") << "nothing is left of a cache that was not finished";
}

}  // namespace
}  // namespace eta::training
