// The scheduler between tenants: rounds, slots, rows, blocks and limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "engine/batching/scheduler.h"
#include "tests/testing/base/noon.h"

namespace eta {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kBlockSize = 16;

// The same numbers everywhere: the standard's distributions differ between libraries.
class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}
  int32_t Pick(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }

 private:
  std::mt19937 random_;
};

// What the digest of a plan is made of (FNV-1a).
class Digest {
 public:
  void Add(int64_t value) {
    for (int i = 0; i < 8; ++i) {
      hash_ = (hash_ ^ static_cast<uint64_t>(value >> (8 * i) & 0xFF)) * 0x100000001B3;
    }
  }
  void Add(const StepPlan& plan) {
    for (const int32_t index : plan.preempted) Add(index);
    Add(-1);
    for (const int32_t index : plan.admitted) Add(index);
    Add(-2);
    for (const StepPlan::Work& work : plan.work) {
      Add(work.index);
      Add(work.num_rows);
      Add(work.new_blocks);
    }
    Add(plan.short_of_blocks ? 1 : 0);
    Add(plan.spare_blocks);
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

// A request of the simulation below.
struct Job {
  int32_t tenant = 0;
  int arrived = 0;  // step
  int32_t prompt = 0;
  int32_t answer = 0;
  int32_t num_tokens = 0;
  int32_t num_computed = 0;
  std::vector<int32_t> blocks;
  bool started = false;
  bool paused = false;

  Clock::time_point rank() const { return kNoon + std::chrono::milliseconds(arrived); }
  int64_t kv_tokens() const { return int64_t{prompt} + answer; }
};

// Carries plans out as the batcher does: blocks are taken and given back, rows computed, tokens
// drawn, rounds kept.
class World {
 public:
  World(std::vector<TenantRound> tenants, int32_t num_blocks)
      : references_(num_blocks, 0), free_(num_blocks) {
    std::iota(free_.begin(), free_.end(), 0);
    input_.tenants = std::move(tenants);
    input_.block_size = kBlockSize;
    input_.max_running = 8;
    input_.max_step_tokens = 64;
    admitted.resize(input_.tenants.size());
    rows.resize(input_.tenants.size());
  }

  void Arrive(int32_t tenant, int32_t prompt, int32_t answer) {
    auto job = std::make_unique<Job>();
    job->tenant = tenant;
    job->arrived = step_;
    job->prompt = job->num_tokens = prompt;
    job->answer = answer;
    waiting.push_back(std::move(job));
  }

  StepPlan Step() {
    ++step_;
    SchedulerInput input = input_;
    input.available_blocks = static_cast<int32_t>(free_.size());
    input.references = references_;
    for (const auto& job : running) {
      input.running.push_back({job->rank(), job->num_tokens, job->num_computed, job->blocks,
                               job->paused, job->tenant, job->kv_tokens()});
    }
    for (const auto& job : waiting) {
      const int64_t cost = job->started ? job->num_tokens : job->kv_tokens();
      input.waiting.push_back({job->rank(), BlocksFor(job->num_tokens, kBlockSize), job->num_tokens,
                               0, false, job->tenant, job->kv_tokens(), static_cast<double>(cost)});
    }
    StepPlan plan = PlanStep(input);
    CarryOut(plan);
    return plan;
  }

  bool Done() const { return running.empty() && waiting.empty(); }
  size_t free_blocks() const { return free_.size(); }
  int step() const { return step_; }

  std::vector<std::unique_ptr<Job>> running;
  std::vector<std::unique_ptr<Job>> waiting;  // ascending by rank
  std::vector<int64_t> admitted;              // tokens that were given a slot, by tenant
  std::vector<int64_t> rows;                  // computed, by tenant

 private:
  void CarryOut(const StepPlan& plan) {
    for (size_t i = 0; i < input_.tenants.size(); ++i) {
      input_.tenants[i].deficit = plan.deficits.at(i);
    }
    input_.current_tenant = plan.current_tenant;
    std::vector<Job*> jobs;
    for (const auto& job : running) jobs.push_back(job.get());
    for (const int32_t index : plan.preempted) {
      Free(*running[index]);
      running[index]->num_computed = 0;
      waiting.push_back(std::move(running[index]));
    }
    std::erase(running, nullptr);
    for (const int32_t index : plan.admitted) {
      Job& job = *waiting[index];
      admitted[job.tenant] += job.started ? job.num_tokens : job.kv_tokens();
      job.started = true;
      Take(job, BlocksFor(job.num_tokens, kBlockSize));
      jobs.push_back(&job);
      running.push_back(std::move(waiting[index]));
    }
    std::erase(waiting, nullptr);
    std::stable_sort(waiting.begin(), waiting.end(),
                     [](const auto& a, const auto& b) { return a->rank() < b->rank(); });
    for (const StepPlan::Work& work : plan.work) {
      Job& job = *jobs[work.index];
      Take(job, work.new_blocks);
      job.num_computed += work.num_rows;
      rows[job.tenant] += work.num_rows;
      if (job.num_computed == job.num_tokens) ++job.num_tokens;
    }
    std::erase_if(running, [this](const auto& job) {
      if (job->num_tokens < job->prompt + job->answer) return false;
      Free(*job);
      return true;
    });
    std::set<int32_t> wanting;  // who wants nothing saves nothing up
    for (const auto& job : waiting) wanting.insert(job->tenant);
    for (size_t i = 0; i < input_.tenants.size(); ++i) {
      if (!wanting.contains(static_cast<int32_t>(i))) input_.tenants[i].deficit = 0.0;
    }
  }

  void Take(Job& job, int32_t count) {
    for (; count > 0; --count) {
      ASSERT_FALSE(free_.empty());
      job.blocks.push_back(free_.back());
      references_[free_.back()] = 1;
      free_.pop_back();
    }
  }
  void Free(Job& job) {
    for (const int32_t block : job.blocks) {
      references_[block] = 0;
      free_.push_back(block);
    }
    job.blocks.clear();
  }

  SchedulerInput input_;
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;
  int step_ = 0;
};

SchedulerInput RandomInput(Dice& dice, std::vector<int32_t>& ids) {
  static const std::vector<int32_t> held_once(1 << 16, 1);
  SchedulerInput input;
  input.references = held_once;
  input.block_size = 16 << dice.Pick(0, 2);
  input.max_running = dice.Pick(1, 12);
  input.max_step_tokens = dice.Pick(input.max_running, 300);
  input.available_blocks = dice.Pick(0, 60);
  int32_t next = 0;
  for (int i = dice.Pick(0, input.max_running); i > 0; --i) {
    RunningSequence sequence;
    sequence.rank = kNoon + seconds(dice.Pick(0, 50));
    sequence.num_tokens = dice.Pick(1, 900);
    sequence.num_computed =
        dice.Pick(0, 1) == 1 ? sequence.num_tokens - 1 : dice.Pick(0, sequence.num_tokens - 1);
    const int32_t blocks = BlocksFor(sequence.num_tokens - dice.Pick(0, 1), input.block_size);
    sequence.blocks = std::span(ids).subspan(next, blocks);
    next += blocks;
    sequence.paused = dice.Pick(0, 9) == 0;
    input.running.push_back(sequence);
  }
  for (int i = dice.Pick(0, 9); i > 0; --i) {
    WaitingSequence waiting;
    waiting.rank = kNoon + seconds(60 - i);
    waiting.num_tokens = dice.Pick(1, 900);
    waiting.blocks_needed = BlocksFor(waiting.num_tokens, input.block_size);
    waiting.held = dice.Pick(0, 7) == 0;
    input.waiting.push_back(waiting);
  }
  return input;
}

// Of the plans that the scheduler made of these inputs before it knew tenants.
constexpr uint64_t kDigest = 0x744182CD78110061;

TEST(FairScheduler, ASingleTenantIsPlannedAsIfThereWereNoTenants) {
  Dice dice(11);
  std::vector<int32_t> ids(1 << 16);
  std::iota(ids.begin(), ids.end(), 0);
  Digest plain;
  Digest tenant;
  for (int round = 0; round < 20'000; ++round) {
    SchedulerInput input = RandomInput(dice, ids);
    plain.Add(PlanStep(input));
    input.tenants = {{.weight = 0.01 * (1 + round % 997), .deficit = round % 5000 - 2500.0}};
    for (WaitingSequence& waiting : input.waiting) {
      waiting.cost = waiting.num_tokens + round % 4096;
      waiting.kv_tokens = waiting.num_tokens;
    }
    tenant.Add(PlanStep(input));
  }
  EXPECT_EQ(plain.value(), kDigest);
  EXPECT_EQ(tenant.value(), kDigest);
}

TEST(FairScheduler, BackloggedTenantsAreServedInProportionToTheirWeights) {
  Dice dice(5);
  const std::vector<double> weights = {1.0, 3.0, 0.5, 1.0};
  std::vector<TenantRound> tenants;
  for (const double weight : weights) tenants.push_back({.weight = weight});
  World world(tenants, 2000);
  // Short requests, long ones, long prompts, long answers: what a request is like does not matter.
  const auto arrive = [&](int32_t tenant) {
    constexpr int32_t kPrompts[] = {20, 200, 400, 10};
    constexpr int32_t kAnswers[] = {10, 60, 4, 150};
    world.Arrive(tenant, kPrompts[tenant] + dice.Pick(0, 19), kAnswers[tenant] + dice.Pick(0, 9));
  };
  std::vector<int32_t> queued(4);
  while (world.step() < 40'000) {
    std::fill(queued.begin(), queued.end(), 0);
    for (const auto& job : world.waiting) ++queued[job->tenant];
    for (int32_t tenant = 0; tenant < 4; ++tenant) {
      for (; queued[tenant] < 40; ++queued[tenant]) arrive(tenant);
    }
    world.Step();
  }
  const double total = std::accumulate(world.admitted.begin(), world.admitted.end(), 0.0);
  const double rows = std::accumulate(world.rows.begin(), world.rows.end(), 0.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(world.admitted[i]) / total, weights[i] / 5.5,
                0.02 * weights[i] / 5.5);
    EXPECT_NEAR(static_cast<double>(world.rows[i]) / rows, weights[i] / 5.5,
                0.03 * weights[i] / 5.5);
  }
}

// Random scripts: arrivals in bursts, paused readers, few blocks. Nobody who may be admitted sees
// more go to others than the rounds it needs to afford its slot allow; in the end all are served
// and no block is missing.
TEST(FairScheduler, NobodyStarvesWhateverComes) {
  for (uint32_t seed = 0; seed < 25; ++seed) {
    Dice dice(seed);
    std::vector<TenantRound> tenants(dice.Pick(2, 6));
    double weights = 0.0;
    for (TenantRound& tenant : tenants) {
      tenant.weight = 0.25 * dice.Pick(1, 16);
      if (dice.Pick(0, 3) == 0) tenant.max_kv_tokens = dice.Pick(100, 2000);
      if (dice.Pick(0, 3) == 0) tenant.max_slots = dice.Pick(1, 4);
      weights += tenant.weight;
    }
    const int32_t num_blocks = dice.Pick(64, 200);
    constexpr int32_t kLongest = 700;
    World world(tenants, num_blocks);
    // What went to others since a tenant with work, below its limits, was last admitted.
    std::vector<int64_t> passed(tenants.size(), 0);
    while (world.step() < 600 || !world.Done()) {
      ASSERT_LT(world.step(), 200'000) << "seed " << seed << ": somebody is never served";
      for (int i = world.step() < 600 ? dice.Pick(-6, 4) : 0; i > 0; --i) {
        const int32_t prompt = dice.Pick(1, dice.Pick(0, 5) == 0 ? 500 : 60);
        world.Arrive(dice.Pick(0, static_cast<int32_t>(tenants.size()) - 1), prompt,
                     dice.Pick(1, 200));
      }
      for (const auto& job : world.running) {
        job->paused = world.step() < 600 && dice.Pick(0, job->paused ? 3 : 30) == 0;
      }
      std::vector<int64_t> slots(tenants.size(), 0);
      std::vector<int64_t> kv(tenants.size(), 0);
      for (const auto& job : world.running) {
        slots[job->tenant] += job->paused ? 0 : 1;
        kv[job->tenant] += job->kv_tokens();
      }
      std::vector<const Job*> heads(tenants.size(), nullptr);
      for (const auto& job : world.waiting) {
        if (heads[job->tenant] == nullptr) heads[job->tenant] = job.get();
      }
      std::vector<bool> may(tenants.size());
      for (size_t i = 0; i < tenants.size(); ++i) {
        may[i] = heads[i] != nullptr && slots[i] < tenants[i].max_slots &&
                 (tenants[i].max_kv_tokens == 0 || kv[i] == 0 ||
                  kv[i] + heads[i]->kv_tokens() <= tenants[i].max_kv_tokens);
      }
      const std::vector<int64_t> before = world.admitted;
      world.Step();
      const int64_t all =
          std::accumulate(world.admitted.begin(), world.admitted.end(), int64_t{0}) -
          std::accumulate(before.begin(), before.end(), int64_t{0});
      for (size_t i = 0; i < tenants.size(); ++i) {
        if (!may[i] || world.admitted[i] > before[i]) {
          passed[i] = 0;
          continue;
        }
        passed[i] += all;
        const double rounds = std::ceil(kLongest / (kQuantumTokens * tenants[i].weight)) + 1.0;
        ASSERT_LE(
            static_cast<double>(passed[i]),
            rounds * kQuantumTokens * weights + kLongest * static_cast<double>(tenants.size()))
            << "seed " << seed << ", tenant " << i;
      }
    }
    EXPECT_EQ(world.free_blocks(), static_cast<size_t>(num_blocks)) << "seed " << seed;
  }
}

TEST(FairScheduler, SixtyLongPromptsDoNotHoldAnothersShortOneBack) {
  SchedulerInput input;
  input.tenants.resize(2);
  input.max_step_tokens = 256;
  for (int i = 0; i < 60; ++i) {
    input.running.push_back({kNoon + seconds(i), 30'000, 512, {}, false, 0});
  }
  input.running.push_back({kNoon + seconds(100), 100, 0, {}, false, 1});
  std::vector<int32_t> blocks(500);
  for (RunningSequence& sequence : input.running) sequence.blocks = blocks;
  const std::vector<int32_t> references(1, 61);
  input.references = references;
  std::map<int32_t, int32_t> rows;
  for (const StepPlan::Work& work : PlanStep(input).work) rows[work.index] = work.num_rows;
  EXPECT_EQ(rows[60], 100) << "its whole prompt in one step";
  EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), 0,
                            [](int sum, const auto& row) { return sum + row.second; }),
            256)
      << "and nothing is left over";

  input.running.back().num_tokens = 5000;
  rows.clear();
  for (const StepPlan::Work& work : PlanStep(input).work) rows[work.index] = work.num_rows;
  EXPECT_EQ(rows[60], 128) << "half of the step, as it is one of two";
  input.tenants[0].weight = 3.0;
  rows.clear();
  for (const StepPlan::Work& work : PlanStep(input).work) rows[work.index] = work.num_rows;
  EXPECT_NEAR(rows[60], 64, 1);
}

WaitingSequence Arriving(int second, int32_t tenant, int32_t prompt, int32_t answer = 0) {
  return {.rank = kNoon + seconds(second),
          .blocks_needed = BlocksFor(prompt, 64),
          .num_tokens = prompt,
          .tenant = tenant,
          .kv_tokens = int64_t{prompt} + answer,
          .cost = static_cast<double>(prompt + answer)};
}

TEST(FairScheduler, AFloodIsServedInTurnWithALateComer) {
  SchedulerInput input;
  input.tenants.resize(2);
  input.available_blocks = 1000;
  input.max_running = 4;
  for (int i = 0; i < 100; ++i) input.waiting.push_back(Arriving(i, 0, 200));
  input.waiting.push_back(Arriving(1000, 1, 200));
  EXPECT_THAT(PlanStep(input).admitted, ::testing::Contains(100)) << "one of the first four";
}

TEST(FairScheduler, ATenantAtItsLimitWaitsAlthoughThereIsRoomAndOthersPass) {
  SchedulerInput input;
  input.tenants = {{.max_kv_tokens = 1000}, {}};
  input.available_blocks = 1000;
  const std::vector<int32_t> blocks(5);
  const std::vector<int32_t> references(1, 1);
  input.references = references;
  input.running = {{kNoon, 300, 299, blocks, false, 0, 600}};
  input.waiting = {Arriving(1, 0, 300, 101), Arriving(2, 0, 10, 10), Arriving(3, 1, 5000, 100)};
  EXPECT_THAT(PlanStep(input).admitted, ElementsAre(2)) << "nobody of the first tenant overtakes";
  input.running[0].paused = true;
  EXPECT_THAT(PlanStep(input).admitted, ElementsAre(2)) << "a paused one keeps what it holds";
  input.waiting[0].kv_tokens = 400;
  EXPECT_EQ(PlanStep(input).admitted.size(), 2u) << "exactly what it may have, then no more";
  input.running.clear();
  input.waiting[0].kv_tokens = 4000;
  EXPECT_THAT(PlanStep(input).admitted, ::testing::UnorderedElementsAre(0, 2))
      << "over a limit that was lowered: alone";
}

TEST(FairScheduler, ATenantAtItsSlotsWaitsAndOthersPass) {
  SchedulerInput input;
  input.tenants = {{.max_slots = 2}, {}};
  input.available_blocks = 1000;
  input.max_running = 4;
  for (int i = 0; i < 5; ++i) input.waiting.push_back(Arriving(i, 0, 10));
  EXPECT_THAT(PlanStep(input).admitted, ElementsAre(0, 1));
  input.waiting.push_back(Arriving(9, 1, 10));
  EXPECT_THAT(PlanStep(input).admitted, ::testing::UnorderedElementsAre(0, 1, 5));
}

TEST(FairScheduler, WhoWaitsForBlocksKeepsItsTurnAndSavesNothingUp) {
  SchedulerInput input;
  input.tenants.resize(2);
  input.available_blocks = 10;
  input.waiting = {Arriving(0, 0, 2000), Arriving(1, 1, 2000), Arriving(2, 1, 64)};
  StepPlan plan = PlanStep(input);
  EXPECT_THAT(plan.admitted, IsEmpty());
  EXPECT_TRUE(plan.short_of_blocks);
  const std::vector<double> deficits = plan.deficits;
  for (size_t i = 0; i < 2; ++i) input.tenants[i].deficit = deficits[i];
  input.current_tenant = plan.current_tenant;
  EXPECT_EQ(PlanStep(input).deficits, deficits);
  EXPECT_EQ(PlanStep(input).current_tenant, plan.current_tenant);
}

TEST(FairScheduler, BlocksComeFromTheTenantThatHoldsMostForItsWeight) {
  std::vector<int32_t> ids(64);
  std::iota(ids.begin(), ids.end(), 0);
  const std::vector<int32_t> references(64, 1);
  const auto held = [&](int32_t begin, int32_t count) {
    return std::span<const int32_t>(ids).subspan(begin, count);
  };
  SchedulerInput input;
  input.references = references;
  input.tenants.resize(2);
  // Four of one tenant, the second oldest wants a block; one of another, the latest of all.
  input.running = {{kNoon, 640, 639, held(0, 10), false, 0},
                   {kNoon + seconds(1), 65, 64, held(10, 1), false, 0},
                   {kNoon + seconds(2), 640, 639, held(20, 10), false, 0},
                   {kNoon + seconds(3), 640, 639, held(30, 10), false, 0},
                   {kNoon + seconds(4), 640, 639, held(40, 10), false, 1}};
  EXPECT_THAT(PlanStep(input).preempted, ElementsAre(3));
  input.tenants[0].weight = 4.0;
  EXPECT_THAT(PlanStep(input).preempted, ElementsAre(4)) << "now it is the other that has more";
  // The oldest of all advances, whatever its tenant holds.
  input.tenants[0].weight = 0.01;
  input.running[0].num_tokens = 641;
  input.running[0].num_computed = 640;
  input.running = {input.running[0], input.running[4]};
  EXPECT_THAT(PlanStep(input).preempted, ElementsAre(1));
}

}  // namespace
}  // namespace eta
