// From what a batcher holds to the scheduler's input, and to the plan of a step.
//
// It has no state of its own and changes nothing. Not thread-safe: it reads the step thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/batching/batcher_options.h"
#include "engine/batching/blocks/block_pool.h"
#include "engine/batching/fairness/tenant_shares.h"
#include "engine/batching/scheduler.h"
#include "engine/batching/sequence.h"
#include "engine/model/kv_cache.h"
#include "kernels/batch.h"

namespace eta {

class StepPlanner {
 public:
  using Sequences = std::span<const std::unique_ptr<Sequence>>;

  // All must outlive the planner.
  StepPlanner(const BatcherOptions& options, const KvCache& cache, const BlockPool& pool,
              const TenantShares& tenants)
      : options_(options),
        geometry_(cache.geometry()),
        groups_(cache.groups()),
        pool_(pool),
        tenants_(tenants) {}

  // What the scheduler says for these sequences, of which the waiting ones ascend by rank: for the
  // next step, or for the one after every sequence that is not paused has drawn `ahead` more
  // tokens, which has no drafts. The plan's indices are those of `running` and of `waiting`.
  StepPlan Plan(Sequences running, Sequences waiting, int32_t slots_taken, int32_t ahead,
                Clock::time_point now) const;

  // A waiting sequence as the scheduler sees it; whether another one computes its next block is not
  // known here.
  WaitingSequence Describe(const Sequence& sequence) const;

 private:
  // Whether `other` is going to compute the first block of the prompt that `sequence` lacks, where
  // `shared` blocks are there already.
  bool Computes(const Sequence& other, const Sequence& sequence, int32_t shared) const;
  RunningSequence Describe(const Sequence& sequence, int32_t ahead, Clock::time_point now) const;

  const BatcherOptions& options_;
  const KvGeometry& geometry_;
  const LayerGroups& groups_;
  const BlockPool& pool_;
  const TenantShares& tenants_;
};

}  // namespace eta
