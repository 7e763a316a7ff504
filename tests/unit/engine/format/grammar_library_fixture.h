// A base of tests that follow formats with the library that this build has.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/format/library/grammar_library.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/engine/fake_library.h"

namespace eta::testing {

class GrammarLibraryFixture : public ::testing::Test {
 protected:
  explicit GrammarLibraryFixture(FormatVocabulary vocabulary = SmallVocabulary())
      : vocabulary_(std::move(vocabulary)) {}

  void SetUp() override {
    if (!HasGrammarLibrary()) GTEST_SKIP() << "built without formats of answers";
    auto made = MakeGrammarLibrary(vocabulary_);
    ASSERT_TRUE(made.ok()) << made.status();
    library_ = *std::move(made);
  }

  std::shared_ptr<const CompiledFormat> Make(const AnswerFormat& format) const {
    const auto compiled = library_->Compile(format);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    if (!compiled.ok()) return nullptr;
    auto read = library_->Read(format, *compiled);
    EXPECT_TRUE(read.ok()) << read.status();
    return read.value_or(nullptr);
  }
  std::string Refusal(const AnswerFormat& format) const {
    const auto compiled = library_->Compile(format);
    EXPECT_EQ(compiled.status().code(), absl::StatusCode::kInvalidArgument) << compiled.status();
    return std::string(compiled.status().message());
  }

  // Whether the tokens of single bytes may follow each other and end there; the mask and the guide
  // must agree.
  bool Takes(const CompiledFormat& format, std::string_view text) const {
    const auto guide = format.NewGuide(/*in_reasoning=*/false);
    for (const char c : text) {
      const int32_t token = TokenOf(vocabulary_, std::string_view(&c, 1));
      const auto mask = MaskOf(*guide, vocabulary_);
      const bool taken = guide->Accept(token);
      EXPECT_EQ(Has(mask, token), taken) << text << " at " << c;
      if (!taken) return false;
    }
    const bool ends = Has(MaskOf(*guide, vocabulary_), vocabulary_.ends[0]);
    EXPECT_EQ(ends, guide->Complete()) << text;
    return ends;
  }
  // By the mask, and by the check of a whole answer alike.
  void Expect(const AnswerFormat& format, const std::vector<std::string_view>& good,
              const std::vector<std::string_view>& bad) const {
    const auto made = Make(format);
    ASSERT_NE(made, nullptr);
    for (const std::string_view text : good) {
      EXPECT_TRUE(Takes(*made, text)) << text;
      EXPECT_TRUE(made->Check(text).ok()) << text << ": " << made->Check(text);
    }
    for (const std::string_view text : bad) {
      EXPECT_FALSE(Takes(*made, text)) << text;
      EXPECT_EQ(Reason(made->Check(text)), "ANSWER_INVALID") << text;
    }
  }

  const FormatVocabulary vocabulary_;
  std::unique_ptr<GrammarLibrary> library_;
};

// An answer drawn at random: before each of its tokens, those in the mask are those that the guide
// takes. Returns whether it is complete.
inline bool IsFollowedExactly(const CompiledFormat& format, const FormatVocabulary& vocabulary) {
  const auto guide = format.NewGuide(/*in_reasoning=*/false);
  uint64_t random = 1;
  for (int length = 0; length < 60; ++length) {
    const auto mask = MaskOf(*guide, vocabulary);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary.size; ++id) {
      const bool taken = guide->Accept(id);
      if (taken) guide->Rollback(1);
      EXPECT_EQ(Has(mask, id), taken) << length << ": " << vocabulary.Bytes(id);
      if (taken && id != vocabulary.ends[0]) allowed.push_back(id);
    }
    EXPECT_EQ(MaskOf(*guide, vocabulary), mask);
    if (allowed.empty()) break;
    random = random * 6364136223846793005u + 1442695040888963407u;
    EXPECT_TRUE(guide->Accept(allowed[(random >> 33) % allowed.size()]));
  }
  return guide->Complete();
}

}  // namespace eta::testing
