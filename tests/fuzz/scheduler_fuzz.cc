// Any sequence of arrivals, cancellations, slow readers, drafts and steps, carried out as the
// batcher does it: no plan spends blocks, rows or slots that are not there, drafts take only what
// is free, every block that was taken is given back, and what can go on ends.
//
// Input: the pool's and the step's sizes, the tenants, then operations of a byte and what they
// need.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "engine/batching/blocks/block_pool.h"
#include "engine/batching/scheduler.h"
#include "tests/testing/fuzz/input_reader.h"

namespace {

using eta::fuzz::InputReader;
using eta::fuzz::Require;

constexpr int kMaxSequences = 24;
constexpr int kMaxSteps = 20'000;

struct Sequence {
  eta::Clock::time_point rank;
  int32_t family = 0;  // prompts of a family begin alike
  int32_t prompt = 1;
  int32_t tokens = 1;  // prompt and answer so far
  int32_t most = 1;    // then it ends
  int32_t computed = 0;
  int32_t tenant = 0;
  bool slow = false;     // its reader
  int paused_steps = 0;  // so long without a slot; 0: it has one
  bool started = false;
  // Of drafts behind its newest token: how many there are, how many its rows are to make in all,
  // and how many of them will hold.
  int32_t drafts = 0;
  int32_t to_make = 0;
  int32_t holds = 0;
  std::vector<int32_t> blocks;

  bool decodes() const { return computed >= prompt && computed + 1 == tokens; }
};
using SequencePtr = std::unique_ptr<Sequence>;

class Host {
 public:
  explicit Host(InputReader& reader)
      : block_size_(reader.Pick({4, 16, 64})),
        pool_(reader.Int(1, 60)),
        max_running_(reader.Int(1, 12)),
        max_step_tokens_(max_running_ + reader.Int(0, 200)),
        max_decode_rows_(max_running_ + (max_step_tokens_ - max_running_) / 4) {
    for (int n = reader.Int(1, 4); n > 0; --n) {
      eta::TenantRound round{.weight = reader.Pick({1.0, 0.01, 100.0, 2.5})};
      if (reader.Bool()) round.max_slots = reader.Int(1, 12);
      if (reader.Bool()) round.max_kv_tokens = reader.Int(1, 2000);
      tenants_.push_back(round);
    }
  }

  void Arrive(InputReader& reader) {
    if (running_.size() + waiting_.size() >= kMaxSequences) return;
    auto sequence = std::make_unique<Sequence>();
    const auto priority = static_cast<eta::Priority>(reader.Int(0, 2));
    now_ += std::chrono::milliseconds(reader.Byte());
    sequence->rank = eta::Rank(now_, priority);
    sequence->family = reader.Int(0, 3);
    sequence->prompt = sequence->tokens = reader.Int(1, 400);
    sequence->most = sequence->prompt + reader.Int(1, 40);
    sequence->tenant = reader.Int(0, static_cast<int32_t>(tenants_.size()) - 1);
    // As the engine refuses what cannot ever fit.
    if (eta::BlocksFor(sequence->most, block_size_) > pool_.num_blocks()) return;
    Queue(std::move(sequence));
  }

  void Cancel(InputReader& reader) {
    if (SequencePtr* const one = PickOne(reader)) {
      FreeBlocks(**one);
      Drop(*one);
    }
  }

  void TogglePause(InputReader& reader) {
    if (SequencePtr* const one = PickOne(reader)) (*one)->slow = !(*one)->slow;
  }

  // Proposes drafts, or has rows of the sequence make them.
  void Draft(InputReader& reader) {
    SequencePtr* const one = PickOne(reader);
    if (one == nullptr || !(*one)->decodes()) return;
    Sequence& sequence = **one;
    const int32_t drafts = std::min(reader.Int(0, 15), sequence.most - sequence.tokens - 1);
    const bool makes = reader.Bool();
    sequence.drafts = makes ? 0 : drafts;
    sequence.to_make = makes ? drafts : 0;
    sequence.holds = reader.Int(0, 15);
  }

  void Step() {
    Pause();
    const eta::SchedulerInput input = Input();
    const eta::StepPlan plan = eta::PlanStep(input);
    CheckPlan(input, plan);
    current_tenant_ = plan.current_tenant;
    for (size_t i = 0; i < plan.deficits.size(); ++i) tenants_[i].deficit = plan.deficits[i];
    Apply(plan);
    CheckPool();
  }

  // Every reader reads again: all must end.
  void Finish() {
    for (auto* list : {&running_, &waiting_}) {
      for (const SequencePtr& sequence : *list) sequence->slow = false;
    }
    for (int steps = 0; !running_.empty() || !waiting_.empty(); ++steps) {
      Require(steps < kMaxSteps);
      Step();
    }
    Require(pool_.num_used() == 0);
    std::vector<int32_t> too_many;
    Require(!pool_.Allocate(pool_.num_blocks() + 1, too_many));
    Require(too_many.empty() && pool_.num_available() == pool_.num_blocks());
  }

  void CheckPool() const {
    std::vector<int32_t> holders(static_cast<size_t>(pool_.num_blocks()), 0);
    for (const SequencePtr& sequence : running_) {
      for (const int32_t block : sequence->blocks) ++holders[static_cast<size_t>(block)];
    }
    for (const SequencePtr& sequence : waiting_) Require(sequence->blocks.empty());
    Require(std::equal(holders.begin(), holders.end(), pool_.references().begin()));
    const auto used = std::count_if(holders.begin(), holders.end(), [](int n) { return n > 0; });
    Require(pool_.num_used() == used);
    Require(pool_.num_free() >= 0 && pool_.num_cached() >= 0);
  }

 private:
  eta::PrefixKey KeyOf(const Sequence& sequence, int32_t block) const {
    eta::PrefixKey key;
    key.digest[0] = static_cast<uint8_t>(sequence.family);
    key.digest[1] = static_cast<uint8_t>(sequence.tenant);
    key.digest[2] = static_cast<uint8_t>(block & 0xFF);
    key.digest[3] = static_cast<uint8_t>(block >> 8);
    return key;
  }
  // At least one token of the prompt is always computed.
  int32_t MaxShared(const Sequence& sequence) const { return (sequence.prompt - 1) / block_size_; }

  void Queue(SequencePtr sequence) {
    const auto place = std::upper_bound(
        waiting_.begin(), waiting_.end(), sequence,
        [](const SequencePtr& a, const SequencePtr& b) { return a->rank < b->rank; });
    waiting_.insert(place, std::move(sequence));
  }

  SequencePtr* PickOne(InputReader& reader) {
    const size_t count = running_.size() + waiting_.size();
    if (count == 0) return nullptr;
    const size_t i = reader.Byte() % count;
    return i < running_.size() ? &running_[i] : &waiting_[i - running_.size()];
  }
  void Drop(SequencePtr& one) {
    one.reset();
    std::erase(running_, nullptr);
    std::erase(waiting_, nullptr);
  }
  void FreeBlocks(Sequence& sequence) {
    for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block) {
      pool_.Release(*block);
    }
    sequence.blocks.clear();
  }
  void Grow(Sequence& sequence, int32_t blocks) {
    Require(pool_.Allocate(blocks, sequence.blocks));
  }

  // Slow readers lose their slots, and have them back as far as there are slots.
  void Pause() {
    int32_t slots = max_running_;
    std::vector<int32_t> of_tenant;
    for (const eta::TenantRound& tenant : tenants_) of_tenant.push_back(tenant.max_slots);
    const auto take = [&](Sequence& sequence) {
      int32_t& own = of_tenant[static_cast<size_t>(sequence.tenant)];
      sequence.paused_steps = slots > 0 && own > 0 ? 0 : sequence.paused_steps + 1;
      if (sequence.paused_steps > 0) return;
      --slots;
      --own;
    };
    for (const SequencePtr& sequence : running_) {
      if (sequence->slow) ++sequence->paused_steps;
      if (!sequence->slow && sequence->paused_steps == 0) take(*sequence);
    }
    for (const SequencePtr& sequence : running_) {
      if (!sequence->slow && sequence->paused_steps > 0) take(*sequence);
    }
  }

  eta::SchedulerInput Input() const {
    eta::SchedulerInput input;
    input.available_blocks = pool_.num_available();
    input.free_blocks = pool_.num_free();
    input.references = pool_.references();
    input.block_size = block_size_;
    input.max_running = max_running_;
    input.max_step_tokens = max_step_tokens_;
    input.max_decode_rows = max_decode_rows_;
    input.tenants = tenants_;
    input.current_tenant = current_tenant_;
    for (const SequencePtr& sequence : running_) {
      input.running.push_back(
          {.rank = sequence->rank,
           .num_tokens = sequence->tokens,
           .num_computed = sequence->computed,
           .blocks = sequence->blocks,
           .paused = sequence->paused_steps > 0,
           .tenant = sequence->tenant,
           .kv_tokens = sequence->most,
           .yields = sequence->paused_steps > 2,
           .replays = sequence->computed >= sequence->prompt,
           .drafts = sequence->paused_steps > 0 ? 0 : sequence->drafts,
           .makes_draft = sequence->paused_steps == 0 && sequence->drafts < sequence->to_make});
    }
    for (const SequencePtr& sequence : waiting_) input.waiting.push_back(Describe(*sequence));
    return input;
  }

  eta::WaitingSequence Describe(const Sequence& sequence) const {
    std::vector<eta::PrefixKey> keys;
    for (int32_t i = 0; i < MaxShared(sequence); ++i) keys.push_back(KeyOf(sequence, i));
    const eta::BlockPool::Prefix shared = pool_.FindPrefix(keys);
    return {.rank = sequence.rank,
            .blocks_needed = eta::BlocksFor(sequence.tokens, block_size_) - shared.num_held,
            .num_tokens = sequence.tokens,
            .num_computed = shared.num_blocks * block_size_,
            .held = sequence.slow,
            .tenant = sequence.tenant,
            .kv_tokens = sequence.most,
            .cost = static_cast<double>((sequence.started ? sequence.tokens : sequence.most) -
                                        shared.num_blocks * block_size_),
            .blocks_shared = shared.num_held};
  }

  void CheckPlan(const eta::SchedulerInput& input, const eta::StepPlan& plan) const {
    std::set<int32_t> gone(plan.preempted.begin(), plan.preempted.end());
    Require(gone.size() == plan.preempted.size());
    const std::set<int32_t> admitted(plan.admitted.begin(), plan.admitted.end());
    Require(admitted.size() == plan.admitted.size());
    int64_t rows = 0, decode_rows = 0;
    std::set<int32_t> working;
    for (const eta::StepPlan::Work& work : plan.work) {
      Require(work.index >= 0 && work.num_rows >= 0 && work.new_blocks >= 0);
      Require(static_cast<size_t>(work.index) < input.running.size() + plan.admitted.size());
      Require(working.insert(work.index).second && !gone.contains(work.index));
      rows += work.num_rows;
      if (static_cast<size_t>(work.index) >= input.running.size()) continue;
      const eta::RunningSequence& sequence = input.running[static_cast<size_t>(work.index)];
      Require(!sequence.paused || work.num_rows == 0);
      const int32_t left = sequence.num_tokens - sequence.num_computed;
      Require(work.num_rows <= left + (sequence.replays && left == 1 ? sequence.drafts : 0));
      Require(!work.makes_draft || (work.num_rows == 1 && sequence.makes_draft));
      decode_rows += sequence.replays ? work.num_rows : 0;
    }
    CheckDrafts(input, plan);
    Require(decode_rows <= input.max_decode_rows);
    Require(rows <= input.max_step_tokens && plan.spare_blocks >= 0);
    size_t slots = plan.admitted.size();
    for (size_t i = 0; i < input.running.size(); ++i) {
      slots += input.running[i].paused || gone.contains(static_cast<int32_t>(i)) ? 0 : 1;
    }
    Require(slots <= static_cast<size_t>(input.max_running));
    Require(plan.admitted.empty() || plan.preempted.empty());
    for (const int32_t i : plan.admitted) {
      Require(i >= 0 && static_cast<size_t>(i) < input.waiting.size());
      Require(!input.waiting[static_cast<size_t>(i)].held);
    }
  }

  // Blocks for drafts are taken while nobody lacks any, of those that cache nothing.
  static void CheckDrafts(const eta::SchedulerInput& input, const eta::StepPlan& plan) {
    int64_t blocks = 0, of_drafts = 0;
    for (const int32_t i : plan.admitted) {
      blocks += input.waiting[static_cast<size_t>(i)].blocks_needed;
    }
    for (const eta::StepPlan::Work& work : plan.work) {
      blocks += work.new_blocks;
      if (static_cast<size_t>(work.index) >= input.running.size()) continue;
      const eta::RunningSequence& sequence = input.running[static_cast<size_t>(work.index)];
      const auto held = static_cast<int32_t>(sequence.blocks.size());
      const int32_t needed = eta::BlocksFor(sequence.num_tokens, input.block_size) - held;
      of_drafts += work.new_blocks - std::max(0, needed);
    }
    Require(of_drafts == 0 || (blocks <= input.free_blocks && !plan.short_of_blocks));
  }

  void Apply(const eta::StepPlan& plan) {
    std::vector<Sequence*> sequences;
    for (const SequencePtr& sequence : running_) sequences.push_back(sequence.get());
    std::vector<SequencePtr> admitted;
    for (const int32_t i : plan.admitted) {
      admitted.push_back(std::move(waiting_[static_cast<size_t>(i)]));
    }
    std::erase(waiting_, nullptr);
    for (const int32_t i : plan.preempted) {
      SequencePtr& sequence = running_[static_cast<size_t>(i)];
      FreeBlocks(*sequence);
      sequence->computed = 0;
      sequence->drafts = sequence->to_make = 0;
      Queue(std::move(sequence));
    }
    std::erase(running_, nullptr);
    for (SequencePtr& sequence : admitted) {
      Admit(*sequence);
      sequences.push_back(sequence.get());
      running_.push_back(std::move(sequence));
    }
    for (const eta::StepPlan::Work& work : plan.work) {
      Sequence& sequence = *sequences[static_cast<size_t>(work.index)];
      const int32_t behind = work.makes_draft ? sequence.drafts : 0;
      const size_t before = sequence.blocks.size();
      LayOut(sequence, sequence.computed + std::max(1, work.num_rows) + behind);
      Require(sequence.blocks.size() <= before + static_cast<size_t>(work.new_blocks));
      if (work.makes_draft) {
        ++sequence.drafts;
      } else {
        Compute(sequence, work.num_rows);
      }
    }
    std::erase_if(running_, [&](const SequencePtr& sequence) {
      if (sequence->tokens < sequence->most) return false;
      FreeBlocks(*sequence);
      return true;
    });
  }

  void Admit(Sequence& sequence) {
    for (int32_t i = 0; i < MaxShared(sequence); ++i) {
      const auto block = pool_.Acquire(KeyOf(sequence, i));
      if (!block) break;
      sequence.blocks.push_back(*block);
    }
    sequence.computed = static_cast<int32_t>(sequence.blocks.size()) * block_size_;
    Grow(sequence, eta::BlocksFor(sequence.tokens, block_size_) -
                       static_cast<int32_t>(sequence.blocks.size()));
    sequence.started = true;
    sequence.paused_steps = 0;
  }

  // Blocks for its tokens and for its rows; those of drafts that do not go on are given back.
  void LayOut(Sequence& sequence, int32_t rows_end) {
    const int32_t wanted = eta::BlocksFor(std::max(sequence.tokens, rows_end), block_size_);
    Shrink(sequence, wanted);
    Grow(sequence, wanted - static_cast<int32_t>(sequence.blocks.size()));
  }
  void Shrink(Sequence& sequence, int32_t blocks) {
    const int32_t more = static_cast<int32_t>(sequence.blocks.size()) - blocks;
    pool_.ReleaseLast(std::max(0, more), sequence.blocks);
  }

  // Rows behind the newest token's are of drafts, of which the first ones hold.
  void Compute(Sequence& sequence, int32_t rows) {
    const int32_t before = sequence.computed / block_size_;
    const int32_t drafts = std::max(0, sequence.computed + rows - sequence.tokens);
    const int32_t held = std::min(drafts, sequence.holds);
    sequence.tokens += held;
    sequence.computed += rows - drafts + held;
    if (rows > 0) sequence.drafts = sequence.to_make = 0;
    if (drafts > 0) Shrink(sequence, eta::BlocksFor(sequence.computed, block_size_));
    Require(sequence.computed <= sequence.tokens);
    Require(sequence.computed <= static_cast<int32_t>(sequence.blocks.size()) * block_size_);
    const int32_t full = std::min(sequence.computed, sequence.prompt) / block_size_;
    for (int32_t i = before; i < full; ++i) {
      pool_.Publish(sequence.blocks[static_cast<size_t>(i)], KeyOf(sequence, i));
    }
    if (rows > 0 && sequence.computed == sequence.tokens) ++sequence.tokens;
  }

  const int32_t block_size_;
  eta::BlockPool pool_;
  const int32_t max_running_;
  const int32_t max_step_tokens_;
  const int32_t max_decode_rows_;
  std::vector<eta::TenantRound> tenants_;
  size_t current_tenant_ = 0;
  eta::Clock::time_point now_{std::chrono::hours(1)};
  std::vector<SequencePtr> running_;
  std::vector<SequencePtr> waiting_;  // ascending by rank
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  InputReader reader(data, std::min<size_t>(size, 512));
  Host host(reader);
  while (!reader.empty()) {
    switch (reader.Byte() % 8) {
      case 0:
      case 1:
      case 2:
        host.Arrive(reader);
        break;
      case 3:
        host.Cancel(reader);
        break;
      case 4:
        host.TogglePause(reader);
        break;
      case 5:
        host.Draft(reader);
        break;
      default:
        host.Step();
        break;
    }
    host.CheckPool();
  }
  host.Finish();
  return 0;
}
