#include "engine/batching/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "tests/testing/base/noon.h"

namespace eta {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Blocks that one sequence holds and no other, as far as the test does not say otherwise.
constexpr int32_t kBlocks = 1 << 20;
std::span<const int32_t> NextBlocks(int32_t count) {
  static const auto* const ids = [] {
    auto* all = new std::vector<int32_t>(kBlocks);
    std::iota(all->begin(), all->end(), 0);
    return all;
  }();
  static int32_t next = 0;
  if (next + count > kBlocks) next = 0;
  next += count;
  return std::span(*ids).subspan(static_cast<size_t>(next - count), static_cast<size_t>(count));
}

SchedulerInput Input() {
  static const std::vector<int32_t> held_once(kBlocks, 1);
  SchedulerInput input;
  input.references = held_once;
  return input;
}

RunningSequence Decoding(int second, int32_t tokens, int32_t blocks) {
  return {kNoon + seconds(second), tokens, tokens - 1, NextBlocks(blocks), false};
}

RunningSequence Prefilling(int second, int32_t prompt, int32_t done) {
  return {kNoon + seconds(second), prompt, done, NextBlocks((prompt + 63) / 64), false};
}

WaitingSequence Arriving(int second, int32_t prompt) {
  return {kNoon + seconds(second), (prompt + 63) / 64, prompt, 0};
}

int32_t BlocksOf(const RunningSequence& sequence) {
  return static_cast<int32_t>(sequence.blocks.size());
}

std::map<int32_t, int32_t> RowsByIndex(const StepPlan& plan) {
  std::map<int32_t, int32_t> rows;
  for (const StepPlan::Work& work : plan.work) rows[work.index] = work.num_rows;
  return rows;
}

TEST(Scheduler, NothingToDoIsAnEmptyPlan) {
  const StepPlan plan = PlanStep({});
  EXPECT_THAT(plan.work, IsEmpty());
  EXPECT_THAT(plan.admitted, IsEmpty());
}

TEST(Scheduler, EveryDecodingSequenceGetsOneRowAndThePromptTheRest) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 100, 2), Decoding(1, 65, 2), Prefilling(2, 1000, 0)};
  input.available_blocks = 100;
  input.max_step_tokens = 66;
  const auto rows = RowsByIndex(PlanStep(input));
  EXPECT_EQ(rows.at(0), 1);
  EXPECT_EQ(rows.at(1), 1);
  EXPECT_EQ(rows.at(2), 64);
}

TEST(Scheduler, ReplayedAnswersKeepToTheDecodeRowsAndAllOfThemMove) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 100, 2), Prefilling(1, 640, 64), Prefilling(2, 640, 64),
                   Prefilling(3, 640, 64)};
  input.running[1].replays = true;
  input.running[2].replays = true;
  input.max_step_tokens = 2048;
  EXPECT_GT(RowsByIndex(PlanStep(input)).at(1), 16) << "where every row may select";
  input.max_decode_rows = 16;
  const auto rows = RowsByIndex(PlanStep(input));
  EXPECT_EQ(rows.at(0), 1);
  EXPECT_EQ(rows.at(1), 14) << "the first one takes what decoding leaves, but for a row";
  EXPECT_EQ(rows.at(2), 1);
  EXPECT_GT(rows.at(3), 16) << "a prompt's rows select nothing";
}

TEST(Scheduler, DraftsTakeTheRowsThatNobodyElseUses) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 100, 2), Decoding(1, 70, 2), Prefilling(2, 1000, 0)};
  input.running[0].drafts = 7;
  input.running[1].drafts = 7;
  input.available_blocks = input.free_blocks = 100;
  input.max_step_tokens = 66;
  EXPECT_EQ(RowsByIndex(PlanStep(input)).at(0), 1) << "a prompt takes all";
  input.max_step_tokens = 2 + 1000 + 10;
  auto rows = RowsByIndex(PlanStep(input));
  EXPECT_EQ(rows.at(0), 8);
  EXPECT_EQ(rows.at(1), 4) << "the first one has had the rest";
  EXPECT_EQ(rows.at(2), 1000);
  input.max_decode_rows = 7;
  rows = RowsByIndex(PlanStep(input));
  EXPECT_EQ(rows.at(0), 6);
  EXPECT_EQ(rows.at(1), 1);
}

TEST(Scheduler, DraftsTakeBlocksThatAreFreeWhereNobodyLacksAny) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 62, 1)};  // two more tokens in its block
  input.running[0].drafts = 7;
  input.available_blocks = 5;
  EXPECT_EQ(RowsByIndex(PlanStep(input)).at(0), 3) << "the others are cached";
  input.free_blocks = 1;
  const StepPlan plan = PlanStep(input);
  EXPECT_EQ(RowsByIndex(plan).at(0), 8);
  EXPECT_EQ(plan.work[0].new_blocks, 1);
  input.waiting = {Arriving(1, 6400)};
  EXPECT_EQ(RowsByIndex(PlanStep(input)).at(0), 1) << "somebody waits for blocks";
}

TEST(Scheduler, RowsMakeDraftsWhereNoPromptWaitsForTheStep) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 62, 1), Decoding(1, 70, 2)};
  input.running[0].drafts = 3;  // of which two fit into its block
  input.running[0].makes_draft = true;
  input.available_blocks = 5;
  StepPlan plan = PlanStep(input);
  EXPECT_FALSE(plan.work[0].makes_draft) << "it would take a block that caches something";
  EXPECT_EQ(RowsByIndex(plan).at(0), 3) << "what is made is verified as far as it fits";
  input.free_blocks = 1;
  plan = PlanStep(input);
  EXPECT_TRUE(plan.work[0].makes_draft);
  EXPECT_FALSE(plan.work[1].makes_draft);
  EXPECT_EQ(RowsByIndex(plan).at(0), 1);
  EXPECT_EQ(plan.work[0].new_blocks, 1);
  input.running.push_back(Prefilling(2, 128, 0));
  plan = PlanStep(input);
  EXPECT_FALSE(plan.work[0].makes_draft) << "the step is long for the prompt's sake";
  EXPECT_EQ(RowsByIndex(plan).at(0), 4);
  input.running.pop_back();
  input.waiting = {Arriving(1, 6400)};
  plan = PlanStep(input);
  EXPECT_FALSE(plan.work[0].makes_draft) << "somebody waits for blocks";
  EXPECT_EQ(RowsByIndex(plan).at(0), 1);
}

TEST(Scheduler, DraftsOfWindowsTakeTheirBlocksToo) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 62, 1)};
  input.running[0].drafts = 7;
  input.running[0].window_blocks = 1;
  input.window_groups = 2;
  input.available_blocks = input.free_blocks = 2;
  EXPECT_EQ(RowsByIndex(PlanStep(input)).at(0), 3);
  input.available_blocks = input.free_blocks = 3;
  const StepPlan plan = PlanStep(input);
  EXPECT_EQ(RowsByIndex(plan).at(0), 8);
  EXPECT_EQ(plan.work[0].new_blocks, 3);
}

TEST(Scheduler, AShortPromptOvertakesALongOneWhichStillMoves) {
  SchedulerInput input = Input();
  input.running = {Prefilling(0, 30'000, 512), Prefilling(5, 90, 0)};
  input.max_step_tokens = 256;
  const auto rows = RowsByIndex(PlanStep(input));
  EXPECT_EQ(rows.at(1), 90) << "the short prompt is done in one step";
  EXPECT_EQ(rows.at(0), 256 - 90) << "the long one takes what is left, at least half";
}

TEST(Scheduler, TheOldestPromptKeepsHalfOfTheStepUnderAFloodOfShortOnes) {
  SchedulerInput input = Input();
  input.running = {Prefilling(0, 30'000, 0)};
  for (int i = 1; i < 20; ++i) input.running.push_back(Prefilling(i, 100, 0));
  input.max_step_tokens = 256;
  EXPECT_EQ(RowsByIndex(PlanStep(input)).at(0), 128);
}

TEST(Scheduler, AdmitsInOrderWhileBlocksLast) {
  SchedulerInput input = Input();
  input.waiting = {Arriving(0, 128), Arriving(1, 6400), Arriving(2, 64)};
  input.available_blocks = 50;
  const StepPlan plan = PlanStep(input);
  EXPECT_THAT(plan.admitted, ElementsAre(0)) << "nobody overtakes the one that does not fit yet";
}

TEST(Scheduler, AdmissionLeavesABlockForEachThatRuns) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 10, 1), Decoding(0, 10, 1)};
  input.waiting = {Arriving(1, 192)};
  input.available_blocks = 4;
  EXPECT_THAT(PlanStep(input).admitted, IsEmpty());
  input.available_blocks = 5;
  EXPECT_THAT(PlanStep(input).admitted, ElementsAre(0));
}

TEST(Scheduler, NoSlotNoAdmission) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 10, 1)};
  input.waiting = {Arriving(1, 10)};
  input.available_blocks = 100;
  input.max_running = 1;
  EXPECT_THAT(PlanStep(input).admitted, IsEmpty());
}

TEST(Scheduler, ABlockThatIsMissingComesFromTheLatest) {
  SchedulerInput input = Input();
  input.running = {Decoding(3, 70, 2), Decoding(0, 65, 1), Decoding(1, 10, 1)};
  input.available_blocks = 0;
  const StepPlan plan = PlanStep(input);
  EXPECT_THAT(plan.preempted, ElementsAre(0));
  const auto rows = RowsByIndex(plan);
  EXPECT_EQ(rows.at(1), 1);
  EXPECT_EQ(rows.at(2), 1);
  EXPECT_FALSE(rows.contains(0));
}

TEST(Scheduler, TheLatestPreemptsItselfRatherThanAnElder) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 64, 1), Decoding(1, 65, 1)};
  input.available_blocks = 0;
  const StepPlan plan = PlanStep(input);
  EXPECT_THAT(plan.preempted, ElementsAre(1));
  EXPECT_EQ(RowsByIndex(plan).at(0), 1);
}

TEST(Scheduler, BlocksThatOthersHoldTooAreNotFreedByPreemption) {
  // Blocks 0 to 2 are a prefix that the two latest share; each has one of its own.
  const std::vector<int32_t> a = {5};
  const std::vector<int32_t> b = {0, 1, 2, 3};
  const std::vector<int32_t> c = {0, 1, 2, 4};
  const std::vector<int32_t> references = {2, 2, 2, 1, 1, 1};
  SchedulerInput input;
  input.references = references;
  input.running = {{kNoon, 65, 64, a, false},
                   {kNoon + seconds(1), 250, 249, b, false},
                   {kNoon + seconds(2), 250, 249, c, false}};
  EXPECT_THAT(PlanStep(input).preempted, ElementsAre(2)) << "its own block is enough";
  input.running[0].num_tokens = 129;  // two more
  EXPECT_THAT(PlanStep(input).preempted, ElementsAre(2, 1)) << "not four, but one";
  const StepPlan plan = PlanStep(input);
  ASSERT_EQ(plan.work.size(), 1u);
  EXPECT_EQ(plan.work[0].new_blocks, 2);
  input.running[0].num_tokens = 320;  // four more: five come free once nobody holds the prefix
  EXPECT_THAT(PlanStep(input).preempted, ElementsAre(2, 1));
}

TEST(Scheduler, NobodyIsAdmittedInTheStepThatPreempts) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 65, 1), Decoding(1, 640, 10)};
  input.waiting = {Arriving(2, 10)};
  input.available_blocks = 0;
  const StepPlan plan = PlanStep(input);
  EXPECT_THAT(plan.preempted, ElementsAre(1));
  EXPECT_THAT(plan.admitted, IsEmpty());
}

TEST(Scheduler, APausedSequenceKeepsItsBlocksAndGetsNoRows) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 65, 1), Decoding(1, 10, 1)};
  input.running[0].paused = true;
  input.available_blocks = 0;
  const StepPlan plan = PlanStep(input);
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_FALSE(RowsByIndex(plan).contains(0));
  EXPECT_EQ(RowsByIndex(plan).at(1), 1);
}

TEST(Scheduler, APausedSequenceTakesNoSlotAndIsTheFirstToLoseItsBlocks) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 64, 1), Decoding(1, 65, 1)};
  input.running[0].paused = true;
  input.available_blocks = 0;
  EXPECT_THAT(PlanStep(input).preempted, ElementsAre(0)) << "although it is the earlier one";

  input.available_blocks = 100;
  input.max_running = 2;
  input.waiting = {Arriving(2, 64), Arriving(3, 64)};
  EXPECT_THAT(PlanStep(input).admitted, ElementsAre(0));
  input.waiting[0].held = true;
  EXPECT_THAT(PlanStep(input).admitted, ElementsAre(1)) << "who was paused waits until it reads";
}

TEST(Scheduler, OnePausedForLongGivesItsBlocksToARequestThatLacksNoMore) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 600, 10), Decoding(1, 300, 5), Decoding(2, 60, 1)};
  input.running[0].paused = input.running[1].paused = true;
  input.waiting = {Arriving(3, 512)};  // and a block in reserve
  input.available_blocks = 4;
  StepPlan plan = PlanStep(input);
  EXPECT_THAT(plan.preempted, IsEmpty()) << "a reader may be behind for a moment";
  EXPECT_TRUE(plan.short_of_blocks);

  input.running[1].yields = true;
  plan = PlanStep(input);
  EXPECT_THAT(plan.preempted, ElementsAre(1));
  EXPECT_THAT(plan.admitted, IsEmpty()) << "it is admitted once they are free";
  EXPECT_EQ(RowsByIndex(plan).at(2), 1);

  input.running[0].yields = true;
  input.available_blocks = 3;
  EXPECT_THAT(PlanStep(input).preempted, ElementsAre(1, 0)) << "the latest first";
  input.waiting = {Arriving(3, 64 * 18)};
  EXPECT_THAT(PlanStep(input).preempted, IsEmpty()) << "nothing is gained";
  input.waiting = {Arriving(3, 512)};
  input.waiting[0].blocks_shared = 10;  // which these two hold
  EXPECT_THAT(PlanStep(input).preempted, IsEmpty()) << "what it shares is not gained";
  input.waiting = {Arriving(3, 64), Arriving(4, 512)};
  plan = PlanStep(input);
  EXPECT_THAT(plan.admitted, ElementsAre(0));
  EXPECT_THAT(plan.preempted, IsEmpty()) << "not in the step that admits";
}

TEST(Scheduler, PriorityIsWorthWaitingTimeAndNothingStarves) {
  EXPECT_LT(Rank(kNoon + seconds(5), Priority::kHigh), Rank(kNoon, Priority::kNormal));
  EXPECT_GT(Rank(kNoon + seconds(11), Priority::kHigh), Rank(kNoon, Priority::kNormal));
  EXPECT_LT(Rank(kNoon, Priority::kLow), Rank(kNoon + seconds(21), Priority::kHigh));
}

// Random snapshots: whatever comes, a plan never spends what is not there.
TEST(Scheduler, APlanNeverExceedsItsBudgets) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 5000; ++round) {
    SchedulerInput input = Input();
    input.block_size = 16 << pick(0, 2);
    input.max_running = pick(1, 12);
    input.max_step_tokens = pick(input.max_running, 300);
    input.max_decode_rows = pick(input.max_running, 40);
    input.available_blocks = pick(0, 30);
    input.free_blocks = pick(0, input.available_blocks);
    for (int i = pick(0, input.max_running); i > 0; --i) {
      RunningSequence sequence;
      sequence.rank = kNoon + seconds(pick(0, 50));
      sequence.num_tokens = pick(1, 900);
      sequence.num_computed =
          pick(0, 1) ? sequence.num_tokens - 1 : pick(0, sequence.num_tokens - 1);
      sequence.blocks =
          NextBlocks((sequence.num_tokens - pick(0, 1) + input.block_size - 1) / input.block_size);
      sequence.paused = pick(0, 9) == 0;
      sequence.yields = sequence.paused && pick(0, 1) == 0;
      sequence.replays = pick(0, 2) == 0;
      sequence.drafts = pick(0, 7);
      sequence.makes_draft = pick(0, 2) == 0;
      input.running.push_back(sequence);
    }
    for (int i = pick(0, 5); i > 0; --i) input.waiting.push_back(Arriving(60 - i, pick(1, 900)));

    const StepPlan plan = PlanStep(input);
    int32_t blocks = input.available_blocks;
    for (const int32_t index : plan.preempted) blocks += BlocksOf(input.running[index]);
    int32_t rows = 0;
    int32_t replayed = 0;
    int32_t with_drafts = 0;
    for (const StepPlan::Work& work : plan.work) {
      rows += work.num_rows;
      blocks -= work.new_blocks;
      const bool running = work.index < static_cast<int32_t>(input.running.size());
      if (!running) continue;
      const RunningSequence& sequence = input.running[work.index];
      replayed += sequence.replays ? work.num_rows : 0;
      EXPECT_FALSE(sequence.paused && work.num_rows > 0);
      const int32_t remaining = sequence.num_tokens - sequence.num_computed;
      if (work.num_rows > remaining) {
        with_drafts += work.num_rows;
        EXPECT_EQ(remaining, 1);
        EXPECT_LE(work.num_rows, 1 + sequence.drafts);
        EXPECT_FALSE(plan.short_of_blocks);
      }
      if (work.makes_draft) {
        EXPECT_TRUE(sequence.makes_draft);
        EXPECT_EQ(work.num_rows, 1);
        EXPECT_EQ(remaining, 1);
        EXPECT_FALSE(plan.short_of_blocks);
      }
      EXPECT_LE(sequence.num_computed + work.num_rows + (work.makes_draft ? sequence.drafts : 0),
                (BlocksOf(sequence) + work.new_blocks) * input.block_size);
      for (const int32_t index : plan.preempted) EXPECT_NE(index, work.index);
    }
    for (const int32_t i : plan.admitted) blocks -= input.waiting[i].blocks_needed;
    ASSERT_GE(blocks, 0);
    ASSERT_LE(rows, input.max_step_tokens);
    ASSERT_LE(replayed, input.max_decode_rows);
    ASSERT_LE(with_drafts, input.max_decode_rows);
    size_t in_slots = plan.admitted.size();
    for (size_t i = 0; i < input.running.size(); ++i) in_slots += input.running[i].paused ? 0 : 1;
    ASSERT_LE(in_slots, static_cast<size_t>(input.max_running));
    if (!input.running.empty()) {  // progress: if anybody is ready, somebody moves
      bool anyone_ready = false;
      for (size_t i = 0; i < input.running.size(); ++i) {
        const bool gone = std::find(plan.preempted.begin(), plan.preempted.end(),
                                    static_cast<int32_t>(i)) != plan.preempted.end();
        anyone_ready = anyone_ready || (!gone && !input.running[i].paused);
      }
      if (anyone_ready) {
        EXPECT_GT(rows, 0);
      }
    }
  }
}

TEST(Scheduler, SaysWhenBlocksAreShortAndWhatItLeaves) {
  SchedulerInput input = Input();
  input.running = {Decoding(0, 100, 2), Decoding(1, 129, 2)};  // the second wants a third block
  input.waiting = {Arriving(2, 128)};
  input.available_blocks = 10;
  StepPlan plan = PlanStep(input);
  EXPECT_FALSE(plan.short_of_blocks);
  EXPECT_EQ(plan.spare_blocks, 10 - 1 - 2 - 3) << "one stays in reserve for each that runs";
  EXPECT_TRUE(plan.has_rows());

  input.available_blocks = 4;
  plan = PlanStep(input);
  EXPECT_TRUE(plan.short_of_blocks) << "the arrival waits for a block";
  EXPECT_THAT(plan.admitted, IsEmpty());
  EXPECT_EQ(plan.spare_blocks, 0);

  input.available_blocks = 0;
  plan = PlanStep(input);
  EXPECT_TRUE(plan.short_of_blocks);
  EXPECT_THAT(plan.preempted, ElementsAre(1));
  EXPECT_EQ(plan.spare_blocks, 0);

  // A slot that is missing is no block that is missing.
  input.available_blocks = 10;
  input.max_running = 2;
  plan = PlanStep(input);
  EXPECT_FALSE(plan.short_of_blocks);
  EXPECT_EQ(plan.spare_blocks, 10 - 1 - 2);
}

}  // namespace
}  // namespace eta
