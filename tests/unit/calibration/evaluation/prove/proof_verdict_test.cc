// When a proof passes, and every way in which it fails, on scores that were made up.
#include "calibration/evaluation/prove/proof_verdict.h"

#include <cmath>
#include <cstddef>

#include "calibration/evaluation/prove/proof_page.h"
#include "calibration/evaluation/prove/proof_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kQuestions = 40;

// Of `questions` the first `full` and `sparse` are answered.
TaskScores Task(const std::string& name, int32_t length, size_t full, size_t sparse,
                size_t questions = kQuestions) {
  TaskScores scores = {.task = name, .length = length};
  for (size_t i = 0; i < questions; ++i) {
    scores.full.push_back(i < full ? 1.0 : 0.0);
    scores.sparse.push_back(i < sparse ? 1.0 : 0.0);
  }
  return scores;
}

TextScore Text(double more) {
  return {.text = "wiki",
          .context = 2048,
          .windows = 4,
          .tokens = 4096,
          .loss = 3.0,
          .more = {.mean = std::log1p(more / 100.0), .half_width = 0.001},
          .union_density = 0.4};
}

// Eleven tasks that full attention can do, one that it cannot.
ProofScores GoodScores() {
  ProofScores scores;
  for (int i = 0; i < 11; ++i) {
    for (const int32_t length : {4096, 8192}) {
      scores.ruler.push_back(Task("task" + std::to_string(i), length, 30, 30));
    }
  }
  scores.ruler.push_back(Task("hard", 4096, 4, 0));
  scores.texts = {Text(0.1), Text(0.3)};
  scores.speeds = {{.context = 128, .full_ms = 1.0, .sparse_ms = 1.0, .ratio = 1.0},
                   {.context = 512, .full_ms = 1.0, .sparse_ms = 1.01, .ratio = 0.99}};
  return scores;
}

std::vector<std::string> Broken(const ProofVerdict& verdict) {
  std::vector<std::string> broken;
  for (const ProofRule& rule : verdict.rules) {
    if (!rule.holds) broken.push_back(rule.name);
  }
  return broken;
}

TEST(ProofVerdict, PassesWithinTheToleranceAndLeavesOutWhatFullAttentionCannotDo) {
  const ProofVerdict verdict = JudgeProof(GoodScores(), {});
  EXPECT_TRUE(verdict.holds());
  ASSERT_EQ(verdict.tasks.size(), 12u);
  EXPECT_TRUE(verdict.tasks.front().counts);
  EXPECT_EQ(verdict.tasks.front().questions, 80);
  EXPECT_FALSE(verdict.tasks.back().counts);
  ASSERT_TRUE(verdict.macro.has_value());
  EXPECT_DOUBLE_EQ(verdict.macro->full, 0.75);
  EXPECT_DOUBLE_EQ(verdict.macro->more.mean, 0.0);
  ASSERT_EQ(verdict.lengths.size(), 2u);
  EXPECT_EQ(verdict.lengths[1].length, 8192);
  ASSERT_EQ(verdict.rules.size(), 4u);
  EXPECT_NEAR(*verdict.rules[2].value, 0.2, 1e-3);
  EXPECT_EQ(*verdict.rules[3].value, 0.99);
}

TEST(ProofVerdict, AMeanThatLosesMoreThanAPointFails) {
  ProofScores scores = GoodScores();
  // One question of 40 in every task: 2.5 points, which no task alone shows.
  for (TaskScores& task : scores.ruler) task.sparse[0] = 0.0;
  ProofVerdict verdict = JudgeProof(scores, {});
  EXPECT_THAT(Broken(verdict), ElementsAre("macro"));
  EXPECT_NEAR(*verdict.rules[0].value, -2.5, 1e-9);
  ASSERT_TRUE(verdict.rules[0].interval.has_value());
  EXPECT_LT(verdict.rules[0].interval->second, 0.0);
  EXPECT_TRUE(JudgeProof(scores, {.macro_points = 3.0}).holds());
}

TEST(ProofVerdict, ATaskWhoseWholeIntervalLiesBelowTwoPointsFails) {
  ProofScores scores = GoodScores();
  scores.ruler[0] = Task("task0", 4096, 30, 24);
  scores.ruler[1] = Task("task0", 8192, 30, 25);
  // Others that gain keep the mean.
  scores.ruler[2] = Task("task1", 4096, 30, 40);
  const ProofVerdict verdict = JudgeProof(scores, {});
  EXPECT_THAT(Broken(verdict), ElementsAre("task"));
  EXPECT_THAT(verdict.rules[1].what, HasSubstr("task0"));
  EXPECT_LT(verdict.rules[1].interval->second, -2.0);
  EXPECT_TRUE(JudgeProof(scores, {.task_points = 30.0}).holds());
}

TEST(ProofVerdict, TheIntervalOfATaskIsCorrectedForTheNumberOfTasks) {
  ProofScores scores = GoodScores();
  scores.ruler[0] = Task("task0", 4096, 30, 27);
  scores.ruler[1] = Task("task0", 8192, 30, 25);
  scores.ruler[2] = Task("task1", 4096, 30, 38);
  EXPECT_TRUE(JudgeProof(scores, {.macro_points = 2.0}).holds());
  // The only task that counts is judged by its own 95 % interval, and that lies below.
  std::erase_if(scores.ruler, [](const TaskScores& task) { return task.task != "task0"; });
  EXPECT_THAT(Broken(JudgeProof(scores, {.macro_points = 20.0})), ElementsAre("task"));
}

TEST(ProofVerdict, PerplexityOverTheBoundFails) {
  ProofScores scores = GoodScores();
  scores.texts = {Text(0.2), Text(1.0)};
  ProofVerdict verdict = JudgeProof(scores, {});
  EXPECT_THAT(Broken(verdict), ElementsAre("perplexity"));
  EXPECT_NEAR(*verdict.rules[2].value, 0.6, 1e-2);
  EXPECT_TRUE(verdict.rules[2].interval.has_value());
  EXPECT_TRUE(JudgeProof(scores, {.perplexity_increase = 1.0}).holds());
  scores.texts[0].more.half_width.reset();
  verdict = JudgeProof(scores, {});
  EXPECT_FALSE(verdict.rules[2].interval.has_value());
  EXPECT_FALSE(verdict.rules[2].holds);
}

TEST(ProofVerdict, TheSlowestContextIsJudged) {
  ProofScores scores = GoodScores();
  scores.speeds[0].ratio = 0.97;
  EXPECT_THAT(Broken(JudgeProof(scores, {})), ElementsAre("speed"));
  EXPECT_TRUE(JudgeProof(scores, {.speed = 0.9}).holds());
  scores.speeds.clear();
  EXPECT_TRUE(JudgeProof(scores, {}).holds()) << "what has no meaning is not judged";
}

TEST(ProofVerdict, NothingThatFullAttentionCanDoProvesNothing) {
  ProofScores scores = GoodScores();
  for (TaskScores& task : scores.ruler) task.full.assign(task.full.size(), 0.0);
  const ProofVerdict verdict = JudgeProof(scores, {});
  EXPECT_FALSE(verdict.macro.has_value());
  EXPECT_THAT(Broken(verdict), ElementsAre("macro"));
  EXPECT_FALSE(verdict.rules[0].value.has_value());
}

TEST(ProofPlan, AsksAsManyQuestionsAsShowALossOfTwoPoints) {
  EXPECT_EQ(QuestionsThatShow(0.02, 0.1), 961);
  const ProofPlan plan = MakeProofPlan(16384, false);
  EXPECT_THAT(plan.lengths, ElementsAre(4096, 8192, 16384));
  EXPECT_EQ(plan.QuestionsOfEach(13), 25);  // 13 tasks, 3 lengths: 975
  EXPECT_EQ(plan.QuestionsOfEach(3), 107);
  EXPECT_EQ(plan.QuestionsOfEach(0), plan.first_questions);
  EXPECT_THAT(MakeProofPlan(6000, false).lengths, ElementsAre(4096, 6000));
  EXPECT_THAT(MakeProofPlan(2048, false).lengths, ElementsAre(2048));
  const ProofPlan quick = MakeProofPlan(4096, true);
  EXPECT_THAT(quick.lengths, ElementsAre(4096));
  EXPECT_EQ(quick.QuestionsOfEach(13), quick.first_questions);
}

// The interval of the plan's own questions is as wide as it says: one in ten is answered otherwise,
// as many better as worse.
TEST(ProofPlan, SoManyQuestionsHaveThatInterval) {
  std::vector<double> more(static_cast<size_t>(QuestionsThatShow(kShownLoss, kPartedShare)), 0.0);
  for (size_t i = 0; i < more.size(); i += 20) more[i] = 1.0;
  for (size_t i = 10; i < more.size(); i += 20) more[i] = -1.0;
  EXPECT_NEAR(*IndependentMeanInterval(more).half_width, kShownLoss, 3e-4);
}

Proof Page(const ProofScores& scores, bool quick = false) {
  return {.model = "model",
          .attention = "profile:books.json",
          .settings = "profile books",
          .command = "eta-eval prove --model=model",
          .quick = quick,
          .key = {{"model", "0123456789abcdef"}, {"attention", "fedcba9876543210"}},
          .fingerprint = "f",
          .plan = MakeProofPlan(8192, quick),
          .scores = scores,
          .verdict = JudgeProof(scores, {})};
}

TEST(ProofPage, HasTheVerdictOnTop) {
  ProofScores scores = GoodScores();
  const std::string page = ProofMarkdown(Page(scores), "abc");
  EXPECT_LT(page.find("**Pass"), 100u) << page;
  EXPECT_THAT(page, AllOf(HasSubstr("Measured with: model @ 01234567, attention @ fedcba98"),
                          HasSubstr("Left out, since full attention itself scores under 20 %: "
                                    "hard (10 %)."),
                          HasSubstr("reads 40 % of the keys"), HasSubstr("no `--traffic`"),
                          HasSubstr("![Retrieval by length](lengths.svg)"), HasSubstr("`abc`"),
                          HasSubstr("eta-eval prove --model=model"), Not(HasSubstr("fails"))));
  scores.speeds[0].ratio = 0.5;
  const std::string failed = ProofMarkdown(Page(scores), "abc");
  EXPECT_THAT(failed, AllOf(HasSubstr("**Fail: decode speed over full attention's, slowest at 128"),
                            HasSubstr("| 0.500x | at least 0.980x | **fails** |")));
  EXPECT_EQ(VerdictOf(Page(scores)), "fail");
}

TEST(ProofPage, AQuickProofHasNoVerdict) {
  ProofScores scores = GoodScores();
  scores.speeds[0].ratio = 0.5;
  const Proof proof = Page(scores, /*quick=*/true);
  EXPECT_EQ(VerdictOf(proof), std::nullopt);
  EXPECT_THAT(ProofMarkdown(proof, "abc"),
              AllOf(HasSubstr("**No verdict"), Not(HasSubstr("holds |")), Not(HasSubstr("fails"))));
  EXPECT_THAT(ProofJson(proof), AllOf(HasSubstr("\"verdict\": null"), HasSubstr("\"holds\": null"),
                                      Not(HasSubstr("\"holds\": false"))));
}

TEST(ProofPage, PromptsThatPartAreCounted) {
  ProofScores scores = GoodScores();
  scores.traffic = {{.tokens = 512, .agreed = 512, .compared = 511, .same = 511, .kl = 1.0},
                    {.tokens = 512, .agreed = 99, .compared = 511, .same = 400, .kl = 50.0},
                    {.tokens = 20, .agreed = 20, .compared = 19, .same = 19, .kl = 0.5},
                    {.tokens = 512, .agreed = 9, .compared = 511, .same = 300, .kl = 70.0},
                    {.tokens = 512, .agreed = 49, .compared = 511, .same = 300, .kl = 70.0}};
  scores.long_prompts = 2;
  const std::string page = ProofMarkdown(Page(scores), "abc");
  EXPECT_THAT(page, AllOf(HasSubstr("2 prompts are too long"), HasSubstr("| 100 | 40.0"),
                          HasSubstr("traffic.svg")));
  for (TrafficScore& prompt : scores.traffic) prompt.agreed = prompt.tokens;
  EXPECT_THAT(ProofMarkdown(Page(scores), "abc"),
              AllOf(HasSubstr("| 100.0 (56.6..100.0) | 5 |"), Not(HasSubstr("parting, token"))));
}

}  // namespace
}  // namespace eta
