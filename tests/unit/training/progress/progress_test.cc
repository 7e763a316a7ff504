// What a run tells: the line, the log, the curves.
#include <cmath>
#include <filesystem>

#include "engine/base/progress_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"
#include "training/progress/curves.h"
#include "training/progress/progress_text.h"
#include "training/progress/run_log.h"

namespace eta::training {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

StepRecord Step(int64_t step) {
  return {.step = step,
          .tokens = step * 1000,
          .seconds = 0.5 * static_cast<double>(step),
          .tokens_per_second = 2000.0,
          .loss = 4.0 / static_cast<double>(step),
          .head_density = 0.75};
}

TEST(ProgressText, SaysHowFarAndHowLong) {
  StepRecord record = Step(100);
  record.tokens_per_second = 812'345.0;
  record.skipped_steps = 2;
  EXPECT_EQ(ProgressText(record, 700),
            "step 100 of 700: loss 0.0400, heads 0.750, 812K tokens/s, 2 skipped, 1 s left");
  EvaluationRecord evaluation = {.step = 100,
                                 .full_perplexity = 12.0,
                                 .sparse_perplexity = 12.06,
                                 .head_density = 0.2,
                                 .union_density = 0.25,
                                 .needles = 12,
                                 .full_hits = 12,
                                 .sparse_hits = 11};
  EXPECT_EQ(
      EvaluationText(evaluation),
      "step 100: held-out perplexity 12.0000 full, 12.0600 sparse (+0.50 %), density 0.200 by "
      "head, 0.250 union, needles 12 and 11 of 12");
  evaluation.test = true;
  EXPECT_THAT(EvaluationText(evaluation), HasSubstr("step 100: test perplexity 12.0000 full"));
  EXPECT_EQ(EvaluationText({.step = 100,
                            .as_trained = true,
                            .full_perplexity = 14.0,
                            .reads = 0.51,
                            .holds = 2.062,
                            .needles = 12,
                            .full_hits = 9}),
            "step 100: held-out perplexity 14.0000 as trained, of full attention's keys and values "
            "reads 0.510 and holds 2.062, needles 9 of 12");
}

TEST(ProgressLine, IsALineNowAndThenInAFile) {
  ::testing::internal::CaptureStderr();
  {
    ProgressLine silent;
    silent.Show("nobody sees this", /*at_once=*/true);
    ProgressLine line(ProgressLine::Elsewhere::kLines);
    line.Show("first");
    line.Show("too soon");
    line.Show("last", /*at_once=*/true);
    line.Say(BarText(3, 4, 8));
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "first\nlast\n[######..]\n");
}

TEST(RunLog, GoesOnWithoutWhatCameAfterTheCheckpoint) {
  const TempFolder folder;
  const std::string path = folder.path() + "/log.jsonl";
  RunHistory history;
  {
    auto log = RunLog::Open(path, 0, history).value();
    for (int64_t step = 1; step <= 6; ++step) {
      ASSERT_TRUE(log.Append(StepLine(Step(step))).ok());
      if (step % 2 == 0) {
        ASSERT_TRUE(log.Append(EvaluationLine({.step = step, .full_perplexity = 9.0})).ok());
      }
    }
    ASSERT_TRUE(log.Append("{\"event\":\"step\",\"st").ok());  // killed in the middle of a line
  }
  auto resumed = RunLog::Open(path, 4, history).value();
  EXPECT_THAT(history.steps, SizeIs(4));
  EXPECT_FALSE(history.evaluations.front().test);
  EXPECT_THAT(history.evaluations, SizeIs(2));
  EXPECT_EQ(history.steps[3].loss, 1.0);
  ASSERT_TRUE(resumed.Append(StepLine(Step(5))).ok());
  const std::string text = ReadFile(path);
  EXPECT_EQ(std::ranges::count(text, '\n'), 7);
  EXPECT_TRUE(ParseRunLog(text, 100).ok());
  ASSERT_TRUE(RunLog::Open(path, 0, history).ok());
  EXPECT_EQ(ReadFile(path), "") << "a new run";
}

// bad input: eta-train | --resume: a log with lines of something else | exit code 2, the line named
//   | BadTrainTest.ALogThatIsSomethingElse
TEST(RunLog, LinesOfSomethingElseAreNamed) {
  for (const char* line : {"text", "{}", "{\"event\":\"other\"}", "{\"event\":\"step\"}",
                           "{\"event\":\"evaluation\",\"step\":-1}", "[1]"}) {
    const auto log = ParseRunLog(StepLine(Step(1)) + line + "\n", 10);
    EXPECT_TRUE(absl::IsInvalidArgument(log.status())) << line;
    EXPECT_THAT(std::string(log.status().message()), HasSubstr("log: line 2"));
  }
}

TEST(RunLog, SaysWhichTextWasMeasuredOn) {
  const auto history =
      ParseRunLog(EvaluationLine({.step = 1, .test = true, .full_perplexity = 9.0}), 1);
  ASSERT_TRUE(history.ok()) << history.status();
  EXPECT_TRUE(history->evaluations.front().test);
  EXPECT_FALSE(history->evaluations.front().as_trained);
  EXPECT_FALSE(history->evaluations.front().reads);
}

TEST(RunLog, SaysWhatARivalReads) {
  const auto history = ParseRunLog(
      EvaluationLine(
          {.step = 1, .as_trained = true, .full_perplexity = 9.0, .reads = 0.5, .holds = 2.0625}),
      1);
  ASSERT_TRUE(history.ok()) << history.status();
  EXPECT_TRUE(history->evaluations.front().as_trained);
  EXPECT_EQ(history->evaluations.front().reads, 0.5);
  EXPECT_EQ(history->evaluations.front().holds, 2.0625);
}

TEST(Curves, DrawsWhatThereIs) {
  RunHistory history;
  EXPECT_THAT(SvgCurves(history, "empty"), HasSubstr("</svg>"));
  for (int64_t step = 1; step <= 5000; ++step) history.steps.push_back(Step(step));
  history.steps[10].loss = NAN;
  history.evaluations.push_back(
      {.step = 5000, .full_perplexity = 9.0, .sparse_perplexity = 9.1, .union_density = 0.3});
  const std::string svg = SvgCurves(history, "a <run> & more");
  EXPECT_THAT(svg,
              AllOf(HasSubstr("a &lt;run&gt; &amp; more"), HasSubstr("mean gate"),
                    HasSubstr("decoded, union"), Not(HasSubstr("nan")), Not(HasSubstr("answers"))));
  EXPECT_LT(svg.size(), 40'000u) << "many steps are thinned";
  history.evaluations.push_back({.step = 5000, .test = true, .full_perplexity = 99.0});
  EXPECT_EQ(SvgCurves(history, "a <run> & more"), svg) << "what was measured on another text";
}

}  // namespace
}  // namespace eta::training
