// Who runs in the next step: a pure function from a snapshot to a plan.
//
// Rules. Every decoding sequence gets one row. The rest of the step's rows go to sequences with
// tokens to catch up on (prompts, and answers replayed after a preemption): half to the one that
// has waited longest, then to those that need least, so that a short prompt overtakes a long one
// and the long one still moves. A sequence that needs a block when none is left takes it from the
// running sequence of the latest rank, which loses all of its own (those that others share stay
// with them); the earliest rank therefore always advances. A sequence whose next shared block is
// just being computed for another one waits for it instead of computing it again. Rank is arrival,
// moved by priority: a level of priority is worth kPriorityBonus of waiting, so nothing starves. A
// sequence whose reader is slow is paused: it gets no rows, takes no slot from others, and is the
// first to lose its blocks. One that has been paused for long loses them to a request that waits,
// too, if that is all that the request lacks.
//
// Between tenants. All of the above is the order within one tenant; alone it has everything. Slots
// go to waiting requests by deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) in tokens:
// those to compute and those reserved for the answer. The rows that decoding leaves are divided by
// weight, what one does not need going to the others. Blocks are taken from the tenant that holds
// most for its weight, but never from the earliest rank of all. A tenant at its limit of slots or
// cached tokens is passed over, although there is room.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/request/request.h"

namespace eta {

inline constexpr std::chrono::seconds kPriorityBonus{10};
// What a tenant of weight 1 may take in its turn.
inline constexpr double kTurnTokens = 256.0;

// Blocks that hold `tokens`.
inline int32_t BlocksFor(int32_t tokens, int32_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

// Smaller runs first.
Clock::time_point Rank(Clock::time_point arrival, Priority priority);

struct RunningSequence {
  Clock::time_point rank;
  int32_t num_tokens = 0;           // prompt and answer so far
  int32_t num_computed = 0;         // of these, how many stand in the cache; at least one does not
  std::span<const int32_t> blocks;  // held
  bool paused = false;              // it has no slot: its reader is slow, or was
  int32_t tenant = 0;               // index into tenants
  int64_t kv_tokens = 0;            // of its prompt and the longest answer
  bool yields = false;              // paused, and that for long
};

struct WaitingSequence {
  Clock::time_point rank;
  int32_t blocks_needed = 0;  // to hold its tokens, less those shared with running sequences
  int32_t num_tokens = 0;
  int32_t num_computed = 0;  // tokens that shared blocks will cover
  bool held = false;         // not yet: it was running and its reader is slow, or the block of its
                             // prompt that it would compute first is being computed
  int32_t tenant = 0;
  int64_t kv_tokens = 0;
  double cost = 0.0;          // tokens of its tenant's deficit that a slot takes
  int32_t blocks_shared = 0;  // that running sequences hold and it will
};

struct TenantTurn {
  double weight = 1.0;   // above 0
  double deficit = 0.0;  // what it may still take before the turn goes on
  int32_t max_slots = std::numeric_limits<int32_t>::max();
  int64_t max_kv_tokens = 0;  // of its running sequences, the first of which always fits; 0: any
};

struct SchedulerInput {
  std::vector<RunningSequence> running;
  std::vector<WaitingSequence> waiting;  // ascending by rank
  int32_t available_blocks = 0;
  std::span<const int32_t> references;  // by block: how many of the running sequences hold it
  int32_t block_size = 64;
  int32_t max_running = 64;
  int32_t max_step_tokens = 256;
  std::vector<TenantTurn> tenants;  // in the order of their turns; empty: one
  size_t turn = 0;                  // whose turn it is
};

struct StepPlan {
  struct Work {
    int32_t index = 0;  // into running, or running.size() + i for admitted[i]
    int32_t num_rows = 0;
    int32_t new_blocks = 0;  // to allocate before the step
  };
  std::vector<int32_t> preempted;  // indices into running: blocks freed before any is allocated
  std::vector<int32_t> admitted;   // indices into waiting, ascending within a tenant
  std::vector<Work> work;
  // Somebody is preempted, or waits, for lack of blocks: whoever else holds some should give them.
  bool short_of_blocks = false;
  // What the plan leaves to others, less one block in reserve for each that runs.
  int32_t spare_blocks = 0;
  // The turns once these are admitted: the input of the plan after this one.
  std::vector<double> deficits;
  size_t turn = 0;

  // Whether any row is computed.
  bool has_rows() const {
    return std::any_of(work.begin(), work.end(), [](const Work& w) { return w.num_rows > 0; });
  }
};

StepPlan PlanStep(const SchedulerInput& input);

}  // namespace eta
