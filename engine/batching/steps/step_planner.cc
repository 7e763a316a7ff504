#include "engine/batching/steps/step_planner.h"

#include <vector>

namespace eta {
namespace {

// How long a reader may be behind while a request waits for its blocks. What the reader's sequence
// loses then has to be computed again.
constexpr std::chrono::seconds kPatience{1};

}  // namespace

StepPlan StepPlanner::Plan(Sequences running, Sequences waiting, int32_t slots_taken, int32_t ahead,
                           Clock::time_point now) const {
  SchedulerInput input;
  input.available_blocks = pool_.num_available();
  input.free_blocks = pool_.num_free();
  input.references = pool_.references();
  input.block_size = geometry_.block_size;
  input.full_groups = groups_.num_full();
  input.window_groups = groups_.size() - input.full_groups;
  input.max_running = options_.max_running;
  input.max_step_tokens = options_.max_step_tokens;
  input.max_decode_rows = options_.max_decode_rows;
  for (const auto& sequence : running) input.running.push_back(Describe(*sequence, ahead, now));
  tenants_.Describe(input);
  // No more requests of a tenant can be admitted than slots are free. One more is described, to
  // tell that the tenant's queue goes on. Those that are held do not count.
  const int32_t slots = options_.max_running - slots_taken;
  std::vector<int32_t> described(tenants_.size(), 0);
  std::vector<int32_t> places;  // of input.waiting, in `waiting`
  for (size_t i = 0; i < waiting.size() && slots > 0; ++i) {
    int32_t& of_tenant = described[waiting[i]->account->index];
    if (of_tenant > slots) continue;
    WaitingSequence candidate = Describe(*waiting[i]);
    const int32_t shared = candidate.num_computed / input.block_size;
    for (const auto& other : running) {
      candidate.held = candidate.held || Computes(*other, *waiting[i], shared);
    }
    for (size_t j = 0; j < places.size() && !candidate.held; ++j) {
      candidate.held = !input.waiting[j].held && Computes(*waiting[places[j]], *waiting[i], shared);
    }
    input.waiting.push_back(candidate);
    places.push_back(static_cast<int32_t>(i));
    of_tenant += candidate.held ? 0 : 1;
  }
  StepPlan plan = PlanStep(input);
  for (int32_t& index : plan.admitted) index = places[index];
  return plan;
}

RunningSequence StepPlanner::Describe(const Sequence& sequence, int32_t ahead,
                                      Clock::time_point now) const {
  const bool paused = sequence.paused_since.has_value();
  const int32_t more = paused ? 0 : ahead;
  return {.rank = sequence.rank(),
          .num_tokens = sequence.num_tokens() + more,
          .num_computed = sequence.num_computed + more,
          .blocks = sequence.blocks.tables().front(),
          .paused = paused,
          .tenant = sequence.account->index,
          .kv_tokens = sequence.most_tokens(),
          .yields = paused && now - *sequence.paused_since >= kPatience,
          .replays = sequence.prompt_left() == 0,
          .more_blocks = sequence.blocks.tables().subspan(1),
          .window_blocks = sequence.blocks.lengths().window,
          .drafts = paused || ahead > 0 ? 0 : sequence.num_drafts(),
          .makes_draft = !paused && ahead == 0 && sequence.MakesDraft()};
}

WaitingSequence StepPlanner::Describe(const Sequence& sequence) const {
  const int32_t block_size = geometry_.block_size;
  BlockPool::Prefix shared;
  if (options_.prefix_cache) {
    const auto sharable = static_cast<size_t>(sequence.max_shared_blocks(block_size));
    shared = sequence.blocks.FindPrefix(pool_, sequence.prefix_keys().first(sharable));
  }
  // What it shares of windows is not counted: how far they reach is known when it is admitted.
  const int64_t most =
      groups_.MostPages(sequence.num_tokens(), options_.max_step_tokens, block_size);
  const int32_t held = shared.num_held * groups_.num_full();
  // The answer of a sequence that ran already was paid for when it was admitted first.
  const int64_t tokens = (sequence.started() ? sequence.num_tokens() : sequence.most_tokens()) -
                         int64_t{shared.num_blocks} * block_size;
  return {.rank = sequence.rank(),
          .blocks_needed = static_cast<int32_t>(most) - held,
          .num_tokens = sequence.num_tokens(),
          .num_computed = shared.num_blocks * block_size,
          .held = sequence.congested_since.has_value(),
          .tenant = sequence.account->index,
          .kv_tokens = sequence.most_tokens(),
          .cost = static_cast<double>(tokens),
          .blocks_shared = held};
}

bool StepPlanner::Computes(const Sequence& other, const Sequence& sequence, int32_t shared) const {
  const int32_t block_size = geometry_.block_size;
  // A key stands for all of the prompt up to its block, so equal keys have equal indices.
  return !other.paused_since && shared < sequence.max_shared_blocks(block_size) &&
         static_cast<size_t>(shared) < other.prefix_keys().size() &&
         other.num_computed < (shared + 1) * block_size &&
         other.prefix_keys()[shared] == sequence.prefix_keys()[shared];
}

}  // namespace eta
