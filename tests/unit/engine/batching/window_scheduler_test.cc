// Plans for sequences whose layers see windows, carried out on a pool: every block that a plan
// counts is there, no row lacks one, and everybody ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "engine/batching/blocks/block_tables.h"
#include "engine/batching/scheduler.h"
#include "tests/testing/base/noon.h"

namespace eta {
namespace {

using std::chrono::seconds;

constexpr int32_t kWindowBlock = 16;

struct WindowSequence {
  explicit WindowSequence(const LayerGroups& groups) : tables(groups, kWindowBlock) {}

  Clock::time_point rank;
  int32_t prompt = 0;
  int32_t most = 0;  // tokens with the answer
  int32_t tokens = 0;
  int32_t computed = 0;
  std::vector<PrefixKey> keys;
  BlockTables tables;
};

class WindowServer {
 public:
  WindowServer(LayerGroups groups, int32_t blocks, int32_t step_tokens)
      : groups_(std::move(groups)), pool_(blocks), step_tokens_(step_tokens) {}

  BlockPool& pool() { return pool_; }
  int32_t preemptions() const { return preemptions_; }
  int32_t shared() const { return shared_; }
  int32_t limited() const { return limited_; }
  bool idle() const { return running_.empty() && waiting_.empty(); }

  // Prompts of one family begin alike.
  void Add(int32_t prompt, int32_t answer, uint8_t family) {
    auto sequence = std::make_unique<WindowSequence>(groups_);
    sequence->rank = kNoon + seconds(added_++);
    sequence->prompt = prompt;
    sequence->tokens = prompt;
    sequence->most = prompt + answer;
    for (int32_t i = 0; i < (prompt - 1) / kWindowBlock; ++i) {
      PrefixKey key;
      key.digest.fill(family);
      key.digest[0] = static_cast<uint8_t>(i);
      sequence->keys.push_back(key);
    }
    waiting_.push_back(std::move(sequence));
  }

  void Step() {
    const StepPlan plan = PlanStep(Input());
    std::vector<WindowSequence*> sequences;
    for (const auto& sequence : running_) sequences.push_back(sequence.get());
    std::vector<std::unique_ptr<WindowSequence>> admitted;
    for (const int32_t index : plan.admitted) admitted.push_back(std::move(waiting_[index]));
    for (const int32_t index : plan.preempted) {
      running_[index]->tables.Release(pool_);
      running_[index]->computed = 0;
      waiting_.push_back(std::move(running_[index]));
      ++preemptions_;
    }
    std::erase(running_, nullptr);
    std::erase(waiting_, nullptr);
    std::ranges::sort(waiting_, {}, [](const auto& sequence) { return sequence->rank; });
    for (auto& sequence : admitted) {
      sequence->computed = sequence->tables.Share(pool_, sequence->keys) * kWindowBlock;
      shared_ += sequence->computed;
      ASSERT_TRUE(sequence->tables.Grow(pool_, sequence->tokens, sequence->computed));
      sequences.push_back(sequence.get());
      running_.push_back(std::move(sequence));
    }
    for (const StepPlan::Work& work : plan.work) {
      WindowSequence& sequence = *sequences[static_cast<size_t>(work.index)];
      const int32_t end = sequence.computed + std::max(1, work.num_rows);
      const int32_t free = pool_.num_available();
      ASSERT_TRUE(sequence.tables.Grow(pool_, sequence.tokens, end)) << "planned, and not there";
      if (static_cast<size_t>(work.index) < sequences.size() - admitted.size()) {
        EXPECT_EQ(free - pool_.num_available(), work.new_blocks);
      }
    }
    for (const StepPlan::Work& work : plan.work) {
      Compute(*sequences[static_cast<size_t>(work.index)], work.num_rows);
    }
    std::erase_if(running_, [&](const auto& sequence) {
      if (sequence->tokens < sequence->most) return false;
      sequence->tables.Release(pool_);
      return true;
    });
  }

 private:
  SchedulerInput Input() {
    SchedulerInput input;
    input.available_blocks = pool_.num_available();
    input.references = pool_.references();
    input.block_size = kWindowBlock;
    input.full_groups = groups_.num_full();
    input.window_groups = groups_.size() - groups_.num_full();
    input.max_running = 6;
    input.max_step_tokens = step_tokens_;
    for (const auto& sequence : running_) {
      input.running.push_back({.rank = sequence->rank,
                               .num_tokens = sequence->tokens,
                               .num_computed = sequence->computed,
                               .blocks = sequence->tables.tables().front(),
                               .replays = sequence->computed >= sequence->prompt,
                               .more_blocks = sequence->tables.tables().subspan(1),
                               .window_blocks = sequence->tables.lengths().window});
    }
    for (const auto& sequence : waiting_) {
      const BlockPool::Prefix prefix = sequence->tables.FindPrefix(pool_, sequence->keys);
      const int32_t held = prefix.num_held * groups_.num_full();
      input.waiting.push_back({.rank = sequence->rank,
                               .blocks_needed = static_cast<int32_t>(groups_.MostPages(
                                                    sequence->tokens, step_tokens_, kWindowBlock)) -
                                                held,
                               .num_tokens = sequence->tokens,
                               .num_computed = prefix.num_blocks * kWindowBlock,
                               .blocks_shared = held});
    }
    return input;
  }

  void Compute(WindowSequence& sequence, int32_t rows) {
    if (rows == 0) return;
    const int32_t begin = sequence.computed;
    int32_t end = begin + rows;
    if (begin < sequence.prompt) end = std::min(end, sequence.prompt);
    limited_ += end < sequence.prompt && rows < step_tokens_ / 6 ? 1 : 0;
    for (size_t group = 0; group < sequence.tables.tables().size(); ++group) {
      const auto& table = sequence.tables.tables()[group];
      const int64_t first = FirstBlockSeen(begin, groups_.windows[group], kWindowBlock);
      ASSERT_GE(table.size() * kWindowBlock, static_cast<size_t>(end));
      for (auto i = static_cast<size_t>(first); i * kWindowBlock < static_cast<size_t>(end); ++i) {
        ASSERT_NE(table[i], BlockTables::kReleased) << "a row sees it";
      }
    }
    if (begin < sequence.prompt) {
      const std::vector<int32_t> ids(static_cast<size_t>(sequence.prompt), 1);
      const auto last = std::min(static_cast<size_t>(end / kWindowBlock), sequence.keys.size());
      sequence.tables.Publish(pool_, sequence.keys, static_cast<size_t>(begin / kWindowBlock), last,
                              ids);
    }
    sequence.computed = end;
    sequence.tables.ReleaseBehind(pool_, end);
    if (sequence.computed == sequence.tokens) ++sequence.tokens;
  }

  const LayerGroups groups_;
  BlockPool pool_;
  const int32_t step_tokens_;
  std::vector<std::unique_ptr<WindowSequence>> running_;
  std::vector<std::unique_ptr<WindowSequence>> waiting_;
  int32_t added_ = 0;
  int32_t preemptions_ = 0;
  int32_t shared_ = 0;
  int32_t limited_ = 0;
};

LayerGroups WindowGroups(std::vector<int32_t> windows) {
  LayerGroups groups;
  groups.slots = 1;
  groups.windows = std::move(windows);
  return groups;
}

TEST(WindowScheduler, WhatAPlanCountsIsThereAndEverybodyEnds) {
  std::mt19937 random(11);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const std::vector<std::vector<int32_t>> kinds = {
      {0}, {0, 40}, {0, 40, 40, 40, 40, 40}, {0, 0, 1, 100}, {70}};
  int32_t preemptions = 0;
  int32_t shared = 0;
  int32_t limited = 0;
  for (int round = 0; round < 150; ++round) {
    const LayerGroups groups = WindowGroups(kinds[static_cast<size_t>(round) % kinds.size()]);
    const int32_t step_tokens = pick(6, 200);
    // Somebody always fits alone.
    const auto least = static_cast<int32_t>(groups.MostPages(400, step_tokens, kWindowBlock));
    WindowServer server(groups, least + pick(0, 2 * least), step_tokens);
    for (int i = pick(4, 12); i > 0; --i) {
      const int32_t answer = pick(1, 90);
      server.Add(pick(1, 400 - answer), answer, static_cast<uint8_t>(pick(1, 2)));
    }
    int steps = 0;
    for (; !server.idle(); ++steps) {
      ASSERT_LT(steps, 20'000) << "round " << round;
      server.Step();
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(server.pool().num_used(), 0);
    preemptions += server.preemptions();
    shared += server.shared();
    limited += server.limited();
  }
  EXPECT_GT(preemptions, 10);
  EXPECT_GT(shared, 1000);
  EXPECT_GT(limited, 10);
}

TEST(WindowScheduler, RowsAreHeldToTheBlocksThatAreLeft) {
  const std::vector<int32_t> full = {0, 1, 2, 3};
  const std::vector<std::vector<int32_t>> window = {{4}};
  const std::vector<int32_t> references(16, 1);
  SchedulerInput input;
  input.block_size = 16;
  input.window_groups = 1;
  input.references = references;
  input.running = {{.rank = kNoon,
                    .num_tokens = 64,
                    .num_computed = 8,
                    .blocks = full,
                    .more_blocks = window,
                    .window_blocks = 1}};
  input.available_blocks = 10;
  StepPlan plan = PlanStep(input);
  ASSERT_EQ(plan.work.size(), 1u);
  EXPECT_EQ(plan.work[0].num_rows, 56);
  EXPECT_EQ(plan.work[0].new_blocks, 3);
  EXPECT_EQ(plan.spare_blocks, 10 - 3 - 2) << "a block of each group stays in reserve";
  EXPECT_FALSE(plan.short_of_blocks);
  input.available_blocks = 1;
  plan = PlanStep(input);
  EXPECT_EQ(plan.work[0].num_rows, 24) << "up to the end of one block more";
  EXPECT_EQ(plan.work[0].new_blocks, 1);
  EXPECT_TRUE(plan.short_of_blocks) << "passes give theirs back";
  EXPECT_TRUE(plan.preempted.empty());
  input.available_blocks = 0;
  plan = PlanStep(input);
  EXPECT_EQ(plan.work[0].num_rows, 8) << "the block that it has";
}

}  // namespace
}  // namespace eta
