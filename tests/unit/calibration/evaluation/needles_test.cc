// Windows that hide numbers, and what counts as found.
#include <algorithm>
#include <memory>
#include <set>

#include "calibration/evaluation/attention/sequence_settings.h"
#include "calibration/evaluation/needles/needle_evaluation.h"
#include "calibration/evaluation/rivals/h2o.h"
#include "calibration/evaluation/rivals/quest.h"
#include "calibration/evaluation/rivals/rival_backend.h"
#include "engine/base/error.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/calibration/evaluation_fixture.h"

namespace eta {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class NeedlesTest : public EvaluationTest {
 protected:
  NeedlesTest() : checkpoint_(*Checkpoint::Open(ETA_SOURCE_DIR "/models/eta-27m")) {
    config_ = *ParseModelConfig(checkpoint_.config_json());
    tokenizer_ = *Tokenizer::Load(checkpoint_.tokenizer_files(), config_);
  }

  absl::StatusOr<std::vector<NeedleWindow>> Make(const NeedleOptions& options) const {
    const auto source = TextSource::Open(ETA_SOURCE_DIR "/deploy/samples/needle.txt");
    return ReadNeedleWindows(**source, *tokenizer_, options);
  }
  std::string Text(const NeedleWindow& window, int32_t begin, int32_t end) const {
    return tokenizer_->Decode(std::span(window.tokens).subspan(begin, end - begin));
  }

  Checkpoint checkpoint_;
  ModelConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

size_t Occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(NeedlesTest, AWindowHidesNumbersAndAsksForOne) {
  for (const int32_t keys : {1, 5}) {
    const auto windows = Make({.context = 700, .windows = 4, .keys = keys}).value();
    ASSERT_THAT(windows, SizeIs(4));
    for (const NeedleWindow& window : windows) {
      ASSERT_THAT(window.tokens, SizeIs(700));
      EXPECT_EQ(window.tokens[0], tokenizer_->beginning().front());
      const std::string before = Text(window, 0, window.question);
      const std::string question = Text(window, window.question, window.answer);
      std::string answer = Text(window, window.answer, 700);
      answer.erase(0, answer.find_first_not_of(' '));
      EXPECT_THAT(question, HasSubstr("mentioned in the text?"));
      EXPECT_EQ(answer.find_first_not_of("0123456789"), std::string::npos) << answer;
      EXPECT_EQ(answer.size(), 7u);
      EXPECT_EQ(Occurrences(before, "The special magic number for"), static_cast<size_t>(keys));
      EXPECT_EQ(Occurrences(before, answer), 1u);
      const std::string name = question.substr(
          question.rfind(" for ") + 5, question.rfind(" is:") - question.rfind(" for ") - 5);
      EXPECT_THAT(before, HasSubstr("for " + name + " is: " + answer + "."));
    }
  }
}

TEST_F(NeedlesTest, TheNeedleLiesEverDeeper) {
  const auto windows = Make({.context = 1500, .windows = 8, .keys = 3}).value();
  for (size_t i = 0; i < windows.size(); ++i) {
    const double wanted = (static_cast<double>(i) + 0.5) / 8.0;
    EXPECT_NEAR(windows[i].depth, wanted, 64.0 / 1300.0) << i;
  }
}

TEST_F(NeedlesTest, TheSameSeedGivesTheSameWindows) {
  const NeedleOptions options = {.context = 400, .windows = 3, .keys = 2, .seed = 7};
  const auto first = Make(options);
  const auto again = Make(options);
  auto other_options = options;
  other_options.seed = 8;
  const auto other = Make(other_options);
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*first)[i].tokens, (*again)[i].tokens);
    EXPECT_NE((*first)[i].tokens, (*other)[i].tokens);
  }
}

TEST_F(NeedlesTest, WhatDoesNotFitIsRefused) {
  EXPECT_EQ(GetErrorDetail(Make({.context = 64, .windows = 1, .keys = 10}).status()).field,
            "context");
  EXPECT_EQ(GetErrorDetail(Make({.context = 1 << 20, .windows = 1}).status()).field, "context");
}

TEST_F(NeedlesTest, TheEmbeddedModelFindsThemWithFullAttentionAndNotWithoutTheirBlocks) {
  const auto windows = Make({.context = 1024, .windows = 3}).value();
  const auto backend = MakeBackend({.name = "cpu", .num_threads = 2});
  const auto runner = SequenceRunner::Create(
      checkpoint_, **backend,
      {.geometry = MakeKvGeometry(config_, DType::kFloat16), .max_context = 1024});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const std::vector<EvaluatedAttention> ways = {
      {{.options = {.admit_all = true}}, "full"},
      {{}, "dynamic"},
      // Nothing but the last block and the tail.
      {{.options = {.offset = -100.0f, .pinned_blocks = 1}}, "blind"}};
  const auto scores = EvaluateNeedles(OnlyRunner(**runner), windows, ways, {}).value();
  EXPECT_THAT(scores[0].hits, Each(true));
  EXPECT_THAT(scores[1].hits, Each(true));
  EXPECT_THAT(scores[2].hits, Each(false));
  EXPECT_DOUBLE_EQ(scores[0].union_density, 1.0);
  EXPECT_LT(scores[2].union_density, scores[1].union_density);
  EXPECT_LT(scores[0].answer_loss, 0.5);
}

// Those of another offset, block size or kind of prompt do not take part.
TEST_F(NeedlesTest, APromptIsSharedByThoseThatComputeItAlike) {
  const auto windows = Make({.context = 700, .windows = 2}).value();
  const auto backend = std::make_shared<RivalBackend>(
      *MakeBackend({.name = "cpu", .num_threads = 2}), /*num_threads=*/2);
  const auto geometry = MakeKvGeometry(config_, DType::kFloat16);
  const auto runner =
      SequenceRunner::Create(checkpoint_, *backend, {.geometry = geometry, .max_context = 700});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const std::shared_ptr<const Rival> h2o =
      MakeH2o({.window = {0.2}, .share = 0.2, .gate = {true, 5.0f}});
  std::vector<EvaluatedAttention> ways = {{{}, "h2o", h2o},
                                          {{.options = {.admit_all = true}}, "full"},
                                          {{.options = {.offset = 1.0f}}, "offset"},
                                          {{}, "quest", MakeQuest(0.3)},
                                          {{.temper_special = true}, "tempered"},
                                          {{.options = {.sparse_prefill = true}}, "sparse"},
                                          {{}, "h2o again", h2o},
                                          {{}, "dynamic"}};
  for (EvaluatedAttention& way : ways) way.geometry = geometry;
  EXPECT_TRUE(SamePrompt(ways[0], ways[1]));
  for (const size_t other : {2, 4, 5}) EXPECT_FALSE(SamePrompt(ways[0], ways[other])) << other;
  EXPECT_FALSE(SamePrompt(ways[5], ways[5]));
  for (const bool relative : {true, false}) {
    ThresholdProfile profile = {.thresholds = {1.0f}};
    if (relative) profile = {.relative_c = -4.0f};
    EvaluatedAttention frozen = ways[7];
    frozen.profile = std::make_shared<const ThresholdProfile>(std::move(profile));
    EXPECT_EQ(SamePrompt(ways[7], frozen), relative) << "a gate alone reads thresholds of a prompt";
  }
  const NeedleEvaluationOptions options = {.prefill = 600, .rivals = backend.get()};
  const auto together = EvaluateNeedles(OnlyRunner(**runner), windows, ways, options).value();
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto alone =
        EvaluateNeedles(OnlyRunner(**runner), windows, std::span(ways).subspan(i, 1), options);
    ASSERT_TRUE(alone.ok()) << alone.status();
    EXPECT_EQ(together[i].hits, alone->front().hits) << ways[i].name;
    EXPECT_EQ(together[i].answer_loss, alone->front().answer_loss) << ways[i].name;
    EXPECT_EQ(together[i].union_density, alone->front().union_density) << ways[i].name;
  }
  EXPECT_NE(together[0].answer_loss, together[3].answer_loss);
}

// bad input: eta-eval | needles: numbers and ways of attending that are none | exit code 2, the
//   flag named
TEST_F(NeedlesTest, TheCommandChecksItsFlags) {
  const std::string common =
      "needles --model=" ETA_SOURCE_DIR "/models/eta-27m --text=" ETA_SOURCE_DIR
      "/deploy/samples/needle.txt --threads=2 --windows=1 --attention=full ";
  EXPECT_EQ(ExitCode(common + "--context=256"), 0);
  EXPECT_EQ(ExitCode(common + "--context=256 --keys=2 --prefill=100 --json"), 0);
  EXPECT_EQ(ExitCode(common + "--context=63"), 2);
  EXPECT_EQ(ExitCode(common + "--context=256 --prefill=256"), 2);
  EXPECT_EQ(ExitCode(common + "--context=256 --keys=0"), 2);
  EXPECT_EQ(ExitCode(common + "--context=256 --keys=65"), 2);
  EXPECT_EQ(ExitCode(common + "--context=256 --keys=64"), 2) << "they do not fit";
  EXPECT_EQ(ExitCode(common + "--context=1000000"), 2);
  EXPECT_EQ(ExitCode(common + "--context=256 --attention=needle"), 2);
}

}  // namespace
}  // namespace eta
