// What eta-eval reads and computes: texts, windows of them, intervals, profiles.
#include <lzma.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "calibration/evaluation/attention/profile_file.h"
#include "calibration/evaluation/text/text_source.h"
#include "calibration/evaluation/text/windows.h"
#include "calibration/solvers/interval.h"
#include "engine/base/error.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/calibration/evaluation_fixture.h"
#include "tests/testing/engine/tokenizer_json.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Xz(const std::string& text) {
  std::string packed(lzma_stream_buffer_bound(text.size()), '\0');
  size_t size = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(
                6, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(text.data()),
                text.size(), reinterpret_cast<uint8_t*>(packed.data()), &size, packed.size()),
            LZMA_OK);
  packed.resize(size);
  return packed;
}

std::vector<std::string> Documents(TextSource& source) {
  std::vector<std::string> documents;
  while (true) {
    const auto document = source.Next();
    EXPECT_TRUE(document.ok()) << document.status();
    if (!document.ok() || !document->has_value()) return documents;
    documents.push_back(**document);
  }
}

// The first error of a source.
absl::Status Failure(TextSource& source) {
  while (true) {
    const auto document = source.Next();
    if (!document.ok()) return document.status();
    if (!document->has_value()) return absl::OkStatus();
  }
}

using TextSourceTest = EvaluationTest;

TEST_F(TextSourceTest, JsonLinesAreDocumentsInFileOrder) {
  const std::string lines =
      "{\"id\": 1, \"text\": \"one\\ntwo\"}\n\n{\"text\": \"\"}\r\n{\"text\": \"caf\\u00e9\"}";
  const auto source = TextSource::Open(Write("a.jsonl", lines)).value();
  EXPECT_THAT(Documents(*source), ElementsAre("one\ntwo", "", "caf\xc3\xa9"));
}

TEST_F(TextSourceTest, PlainTextIsOneDocumentNewlinesIncluded) {
  const auto source = TextSource::Open(Write("a.txt", "one\ntwo\n")).value();
  EXPECT_THAT(Documents(*source), ElementsAre("one\ntwo\n"));
}

TEST_F(TextSourceTest, CompressedTextReadsAsTheTextItself) {
  std::string text;
  for (int i = 0; i < 50000; ++i) text += std::to_string(i) + " ";
  const std::string packed = Xz("{\"text\": \"" + text + "\"}\n") + Xz("{\"text\": \"b\"}\n");
  const auto source = TextSource::Open(Write("a.jsonl.xz", packed)).value();
  EXPECT_THAT(Documents(*source), ElementsAre(text, "b"));
}

TEST_F(TextSourceTest, CutCompressedTextIsRefusedNotShortened) {
  std::string packed = Xz("{\"text\": \"a\"}\n");
  packed.resize(packed.size() - 9);
  const auto source = TextSource::Open(Write("a.jsonl.xz", packed)).value();
  EXPECT_EQ(Failure(*source).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TextSourceTest, UnpackingStaysWithinItsMemory) {
  const auto source =
      TextSource::Open(Write("a.txt.xz", Xz("text")), {.max_decoder_bytes = uint64_t{1} << 16})
          .value();
  EXPECT_THAT(Failure(*source).message(), HasSubstr("memory"));
}

TEST_F(TextSourceTest, BadLinesAreNamed) {
  for (const char* line :
       {"not json", "[1]", "{\"body\": \"x\"}", "{\"text\": 7}", "{\"text\": \"\xff\"}"}) {
    const auto source =
        TextSource::Open(Write("a.jsonl", std::string("{\"text\": \"fine\"}\n") + line + "\n"))
            .value();
    EXPECT_THAT(Failure(*source).message(), HasSubstr("line 2")) << line;
  }
}

TEST_F(TextSourceTest, SizesAreBounded) {
  const std::string path = Write("a.txt", std::string(100, 'x'));
  const auto document = TextSource::Open(path, {.max_document_bytes = 99});
  EXPECT_THAT(Failure(**document).message(), HasSubstr("99 bytes"));
  const auto total = TextSource::Open(path, {.max_total_bytes = 99});
  EXPECT_THAT(Failure(**total).message(), HasSubstr("99 bytes"));
  const auto both = TextSource::Open(path, {.max_document_bytes = 100, .max_total_bytes = 100});
  EXPECT_TRUE(Failure(**both).ok());
}

TEST_F(TextSourceTest, OtherNamesAndMissingFilesAreRefused) {
  EXPECT_EQ(TextSource::Open(Write("a.parquet", "x")).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TextSource::Open(Path("missing.txt")).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::create_directory(Path("folder.txt"));
  EXPECT_EQ(TextSource::Open(Path("folder.txt")).status().code(), absl::StatusCode::kNotFound);
}

TEST(Interval, CoversTheMeanAsStudentWouldHaveIt) {
  // Block means 1, 2, 3, 4: deviation sqrt(5/3), t(0.975, 3) = 3.1824.
  std::vector<float> values;
  for (int block = 1; block <= 4; ++block) {
    values.insert(values.end(), kIntervalBlock, static_cast<float>(block));
  }
  const MeanInterval interval = BlockMeanInterval(values);
  EXPECT_DOUBLE_EQ(interval.mean, 2.5);
  ASSERT_TRUE(interval.half_width.has_value());
  EXPECT_NEAR(*interval.half_width, 3.1824 * std::sqrt(5.0 / 3.0) / 2.0, 0.01);
  // The same means, of windows of two tokens.
  const std::vector<float> windows = {0, 2, 1, 3, 2, 4, 3, 5};
  EXPECT_DOUBLE_EQ(*BlockMeanInterval(windows, 2).half_width, *interval.half_width);
  EXPECT_FALSE(BlockMeanInterval(windows, 3).half_width.has_value());
}

TEST(Interval, IsNotInventedFromTooFewBlocks) {
  const std::vector<float> values(kMinIntervalBlocks * kIntervalBlock - 1, 1.0f);
  EXPECT_FALSE(BlockMeanInterval(values).half_width.has_value());
  EXPECT_DOUBLE_EQ(BlockMeanInterval(values).mean, 1.0);
}

TEST(Interval, OfIndependentValuesIsStudentsToo) {
  // 9 degrees of freedom: mean 4.5, deviation sqrt(82.5 / 9).
  std::vector<double> values;
  for (int i = 0; i < 10; ++i) values.push_back(i);
  const MeanInterval interval = IndependentMeanInterval(values);
  EXPECT_DOUBLE_EQ(interval.mean, 4.5);
  EXPECT_NEAR(*interval.half_width, 2.262157 * std::sqrt(82.5 / 9.0 / 10.0), 1e-4);
  EXPECT_GT(*IndependentMeanInterval(values, 0.05 / 13).half_width, 1.5 * *interval.half_width);
  EXPECT_FALSE(IndependentMeanInterval(std::span(values).first(3)).half_width.has_value());
}

// From tables of Student's and of the normal distribution.
TEST(Interval, QuantilesOfAnyShareOutside) {
  EXPECT_NEAR(StudentQuantile(10, 0.01), 3.169273, 3e-3);
  EXPECT_NEAR(StudentQuantile(30, 0.001), 3.645959, 3e-3);
  EXPECT_NEAR(StudentQuantile(1e9, 0.01), 2.575829, 1e-6);
  EXPECT_EQ(StudentQuantile(1e9), StudentQuantile(1e9, 0.05));
}

class WindowsTest : public EvaluationTest {
 protected:
  WindowsTest() {
    const auto checkpoint = Checkpoint::Open(ETA_SOURCE_DIR "/models/eta-27m");
    const auto config = ParseModelConfig(checkpoint->config_json());
    tokenizer_ = *Tokenizer::Load(checkpoint->tokenizer_files(), *config);
  }

  absl::StatusOr<std::vector<std::vector<int32_t>>> Cut(const std::string& lines, int32_t context,
                                                        int32_t max_windows) {
    const auto source = TextSource::Open(Write("a.jsonl", lines));
    return ReadWindows(**source, *tokenizer_, context, max_windows);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(WindowsTest, DocumentsFollowEachOtherBetweenBeginAndEndOfText) {
  const auto windows = Cut("{\"text\": \"one\"}\n{\"text\": \"two\"}\n", 3, 0).value();
  std::vector<int32_t> all = *tokenizer_->Encode("one", true);
  EXPECT_EQ(all.front(), tokenizer_->beginning().front());
  all.push_back(tokenizer_->eos_ids().front());
  const std::vector<int32_t> second = *tokenizer_->Encode("two", true);
  all.insert(all.end(), second.begin(), second.end());
  all.push_back(tokenizer_->eos_ids().front());
  const auto fitting = (all.size() - 1) / 3;
  ASSERT_EQ(windows.size(), fitting);
  for (size_t i = 0; i < fitting; ++i) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(3 * i);
    EXPECT_EQ(windows[i], std::vector<int32_t>(begin, begin + 4));
  }
}

TEST_F(WindowsTest, WhatNoTokenStandsForIsNamedWithItsDocument) {
  ModelConfig config;
  config.vocab_size = 16;
  const auto tokenizer =
      Tokenizer::Load({.tokenizer_json = TokenizerJson({"a", "b"}, {}).Dump()}, config).value();
  const std::string path = Write("a.jsonl", "{\"text\": \"abab\"}\n{\"text\": \"abc\"}\n");
  for (auto* const read : {&ReadWindows, &ReadDocumentWindows}) {
    const auto source = TextSource::Open(path);
    const absl::Status status = (*read)(**source, *tokenizer, 1, 0, kMaxTextTokens).status();
    EXPECT_THAT(status, FailsOn(kInvalid, "text"));
    EXPECT_EQ(status.message(),
              "text: document 2: the model's vocabulary has no token for character U+0063, at "
              "offset 2");
  }
}

TEST_F(WindowsTest, NoMoreIsReadThanWindowsAreWanted) {
  const auto windows = Cut("{\"text\": \"one two three four five\"}\nnot json\n", 2, 2).value();
  EXPECT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[0].back(), windows[1].front());
}

TEST_F(WindowsTest, TextThatFillsNoWindowIsAnError) {
  const auto windows = Cut("{\"text\": \"short\"}\n", 4096, 0);
  EXPECT_EQ(GetErrorDetail(windows.status()).field, "context");
}

TEST_F(WindowsTest, OfOneDocumentEachTheyBeginAsAPromptDoes) {
  const std::string lines =
      "{\"text\": \"one two three four five six\"}\n{\"text\": \"seven\"}\n"
      "{\"text\": \"eight nine ten eleven twelve\"}\n";
  const auto cut = [&](int32_t max_windows) {
    const auto source = TextSource::Open(Write("a.jsonl", lines));
    return ReadDocumentWindows(**source, *tokenizer_, 3, max_windows);
  };
  const auto all = cut(0).value();
  ASSERT_GE(all.size(), 3u);
  for (const auto& window : all) {
    EXPECT_EQ(window.size(), 4u);
    EXPECT_EQ(window.front(), tokenizer_->beginning().front());
    EXPECT_EQ(std::count(window.begin(), window.end(), tokenizer_->beginning().front()), 1);
  }
  const std::vector<int32_t> first = *tokenizer_->Encode("one two three four five six", true);
  EXPECT_TRUE(std::equal(all.front().begin(), all.front().end(), first.begin()));
  const auto two = cut(2);
  ASSERT_EQ(two->size(), 2u);
  EXPECT_EQ((*two)[0], all.front());
  EXPECT_NE((*two)[1], all[1]);  // spread, not the first two
}

TEST_F(WindowsTest, NoMoreTextIsHeldThanMayBe) {
  const std::string path = Write(
      "a.jsonl", "{\"text\": \"one two three four\"}\n{\"text\": \"five six seven eight\"}\n");
  for (auto* const read : {&ReadWindows, &ReadDocumentWindows}) {
    const auto held = [&](int32_t max_windows, size_t max_tokens) {
      const auto source = TextSource::Open(path);
      return read(**source, *tokenizer_, 3, max_windows, max_tokens);
    };
    const auto all = held(0, 1000).value();
    const size_t tokens = all.size() * 4;
    EXPECT_TRUE(held(0, tokens).ok());
    const auto over = held(0, tokens - 1);
    EXPECT_THAT(over.status(), FailsOn(absl::StatusCode::kInvalidArgument, "text"));
    EXPECT_THAT(over.status().message(), HasSubstr(std::to_string(tokens - 1)));
  }
}

using ProfileFileTest = EvaluationTest;

TEST_F(ProfileFileTest, ThresholdsAreReadLayerByLayer) {
  const auto profile =
      ReadProfileFile(Write("p.json", R"({"name": "wiki", "thresholds": [[0.5, -1], [2, 3.25]]})"))
          .value();
  EXPECT_EQ(profile.name, "wiki");
  EXPECT_EQ(profile.num_layers, 2);
  EXPECT_EQ(profile.num_query_heads, 2);
  EXPECT_THAT(profile.thresholds, ElementsAre(0.5f, -1.0f, 2.0f, 3.25f));
}

TEST_F(ProfileFileTest, AnythingElseIsRefused) {
  for (const char* text :
       {"", "[]", "{}", R"({"name": "a"})", R"({"name": "", "thresholds": [[1]]})",
        R"({"name": "a", "thresholds": []})", R"({"name": "a", "thresholds": [[]]})",
        R"({"name": "a", "thresholds": [[1], [1, 2]]})", R"({"name": "a", "thresholds": [["1"]]})",
        R"({"name": "a", "thresholds": [[1e60]]})", R"({"name": "a", "thresholds": [[1]], "z": 2})",
        R"({"name": "a", "name": "b", "thresholds": [[1]]})"}) {
    EXPECT_EQ(ReadProfileFile(Write("p.json", text)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

using CommandLineTest = EvaluationTest;

TEST_F(CommandLineTest, PerplexityRefusesWhatItWouldNotRead) {
  const std::string model = "perplexity --model=" ETA_SOURCE_DIR "/models/eta-27m";
  const std::string text = " --text=" + Write("a.txt", "One day the miller went to the river.");
  const std::string profile = Write("p.json", R"({"name": "p", "thresholds": [[1, 2]]})");
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=full --attention=dynamic"), 0);
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=full --z=2"), 2);
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=dynamic --z=nan"), 2);
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=dynamic --prefill=8"), 2);
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=dynamic --kv_dtype=int8"), 2);
  const std::string narrow = " --kv_dtype=float8_e4m3 --index_dtype=int8";
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=dynamic" + narrow), 2);  // not cpu
  EXPECT_EQ(
      ExitCode(model + text + " --context=8 --attention=dynamic --backend=reference" + narrow), 0);
  EXPECT_EQ(ExitCode(model + text + " --context=8 --attention=" + profile), 2);  // other shape
  EXPECT_EQ(ExitCode(model + text + " --context=4096 --attention=full"), 2);     // text too short
  EXPECT_EQ(ExitCode(model + text + " --context=0 --attention=full"), 2);
  EXPECT_EQ(ExitCode(model + text + " --context=8"), 2);
}

}  // namespace
}  // namespace eta
