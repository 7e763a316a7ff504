// Who runs in the next step: a pure function from a snapshot to a plan.
//
// Rows. Every decoding sequence gets one row. The rest of the step's rows go to sequences with
// tokens to catch up on: prompts, and answers that are replayed after a preemption. Half of these
// rows go to the sequence that has waited longest, then the others are served by need, the least
// first. So a short prompt overtakes a long one, and the long one still moves. Replayed rows select
// blocks as decoding rows do; beyond max_decode_rows of both they wait for later steps.
// Drafts of what follows a decoding sequence take what is left: rows that nobody else can use, and
// blocks that are free, while nobody lacks any.
// Blocks. A sequence has those of all its tokens for full layers. Of windows it has those of its
// next row; for more rows at once it takes what is left, and nobody is preempted for them. A
// sequence that needs a block when none is left preempts the running sequence of the
// latest rank. That one loses all of its blocks; those that others share stay with them. So the
// earliest rank always advances. A sequence whose next shared block is being computed for another
// one waits for that block.
// Rank. Rank is arrival, moved by priority: a level of priority is worth kPriorityBonus of waiting.
// So nothing starves.
// Slow readers. A sequence whose reader is slow is paused: it gets no rows and occupies no slot,
// and it is the first to lose its blocks. After a long pause it loses them also to a request that
// waits, if blocks are all that this request lacks.
//
// Between tenants. All of the above is the order within one tenant; a tenant that is alone has
// everything. Slots go to waiting requests by deficit round robin in tokens: those to compute and
// those reserved for the answer. The rows that decoding leaves are divided by weight; what one
// tenant does not need goes to the others. Blocks are taken from the tenant that holds most for its
// weight, but never from the earliest rank of all. A tenant at its limit of slots or of cached
// tokens is passed over, although there is room.
//
// All counts of tokens are of one device. PlanStep has no state: any thread may call it.
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
// What a round adds to the deficit of a tenant of weight 1.
inline constexpr double kQuantumTokens = 256.0;

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
  std::span<const int32_t> blocks;  // held for the first group of layers; below 0: released
  bool paused = false;              // it has no slot: its reader is slow, or was
  int32_t tenant = 0;               // index into tenants
  int64_t kv_tokens = 0;            // of its prompt and the longest answer
  bool yields = false;              // paused for so long that a waiting request may have its blocks
  bool replays = false;             // the tokens to compute are all of its answer
  std::span<const std::vector<int32_t>> more_blocks = {};  // likewise for the others
  int32_t window_blocks = 0;                               // of a window, held or released
  int32_t drafts = 0;  // rows that it may use behind its newest token's
  // Its row may rather make one more draft behind these, where no prompt is computed beside it.
  bool makes_draft = false;
};

struct WaitingSequence {
  Clock::time_point rank;
  int32_t blocks_needed = 0;  // to hold its tokens, and at most those of windows, less those shared
                              // with running sequences
  int32_t num_tokens = 0;
  int32_t num_computed = 0;  // tokens that shared blocks will cover
  bool held = false;         // not to be admitted yet: its reader is slow, or another sequence is
                             // computing the first block that it lacks
  int32_t tenant = 0;
  int64_t kv_tokens = 0;
  double cost = 0.0;          // tokens that a slot costs its tenant's deficit
  int32_t blocks_shared = 0;  // blocks of its prompt that running sequences hold
};

// A tenant's terms in deficit round robin.
struct TenantRound {
  double weight = 1.0;   // above 0
  double deficit = 0.0;  // tokens that it may still be given before the next tenant's round
  int32_t max_slots = std::numeric_limits<int32_t>::max();
  int64_t max_kv_tokens = 0;  // of its running sequences, the first of which always fits; 0: any
};

struct SchedulerInput {
  std::vector<RunningSequence> running;
  std::vector<WaitingSequence> waiting;  // ascending by rank
  int32_t available_blocks = 0;
  int32_t free_blocks = 0;              // of them, those that cache nothing
  std::span<const int32_t> references;  // by block: how many of the running sequences hold it
  int32_t block_size = 64;
  // Groups of layers, each with its own blocks; see LayerGroups.
  int32_t full_groups = 1;
  int32_t window_groups = 0;
  int32_t max_running = 64;
  int32_t max_step_tokens = 256;
  int32_t max_decode_rows = std::numeric_limits<int32_t>::max();  // at least max_running
  std::vector<TenantRound> tenants;  // in the order of their rounds; empty: one
  size_t current_tenant = 0;         // whose round it is
};

struct StepPlan {
  struct Work {
    int32_t index = 0;       // into running, or running.size() + i for admitted[i]
    int32_t num_rows = 0;    // more than the tokens to compute: drafts
    int32_t new_blocks = 0;  // to allocate before the step
    bool makes_draft = false;
  };
  std::vector<int32_t> preempted;  // indices into running: blocks freed before any is allocated
  std::vector<int32_t> admitted;   // indices into waiting, ascending within a tenant
  std::vector<Work> work;
  // Somebody is preempted, or waits, for lack of blocks: passes should give theirs back.
  bool short_of_blocks = false;
  // Blocks that the plan leaves to passes; one in reserve for each that runs is not among them.
  int32_t spare_blocks = 0;
  // Deficit round robin once these are admitted: input of the plan after this one.
  std::vector<double> deficits;
  size_t current_tenant = 0;

  // Whether any row is computed.
  bool has_rows() const {
    return std::any_of(work.begin(), work.end(), [](const Work& w) { return w.num_rows > 0; });
  }
};

StepPlan PlanStep(const SchedulerInput& input);

}  // namespace eta
