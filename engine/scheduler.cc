#include "engine/scheduler.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace eta {
namespace {

// A running or admitted sequence while the plan is made.
struct Candidate {
  Clock::time_point rank;
  bool paused = false;
  int32_t index = 0;
  int32_t remaining = 0;  // tokens to compute
  int32_t new_blocks = 0;
  bool runs = true;
};

// Counts what preempted sequences give back: the blocks that nobody else holds any more.
class Reclaimed {
 public:
  explicit Reclaimed(std::span<const int32_t> references) : references_(references) {}

  int32_t Take(std::span<const int32_t> blocks) {
    int32_t freed = 0;
    for (const int32_t block : blocks) freed += ++released_[block] == references_[block] ? 1 : 0;
    return freed;
  }

 private:
  std::span<const int32_t> references_;
  std::unordered_map<int32_t, int32_t> released_;
};

// Gives every candidate that runs the blocks it lacks, first to last, freeing from the last.
void AssignBlocks(const SchedulerInput& input, std::vector<Candidate>& by_rank, int32_t& available,
                  StepPlan& plan) {
  Reclaimed reclaimed(input.references);
  size_t last = by_rank.size();
  for (size_t i = 0; i < last; ++i) {
    Candidate& candidate = by_rank[i];
    const RunningSequence& sequence = input.running[candidate.index];
    const int32_t needed = BlocksFor(sequence.num_tokens, input.block_size) -
                           static_cast<int32_t>(sequence.blocks.size());
    if (needed <= 0) continue;
    if (sequence.paused) continue;
    while (available < needed && last > i + 1) {
      Candidate& victim = by_rank[--last];
      victim.runs = false;
      available += reclaimed.Take(input.running[victim.index].blocks);
      plan.preempted.push_back(victim.index);
    }
    if (available < needed) {  // itself the latest that is left
      candidate.runs = false;
      available += reclaimed.Take(sequence.blocks);
      plan.preempted.push_back(candidate.index);
      return;
    }
    available -= needed;
    candidate.new_blocks = needed;
  }
}

void Admit(const SchedulerInput& input, int32_t& available, std::vector<Candidate>& candidates,
           StepPlan& plan) {
  auto seated = static_cast<int32_t>(
      std::count_if(input.running.begin(), input.running.end(),
                    [](const RunningSequence& sequence) { return !sequence.paused; }));
  for (size_t i = 0; i < input.waiting.size(); ++i) {
    const WaitingSequence& waiting = input.waiting[i];
    if (waiting.held) continue;
    if (seated >= input.max_running) return;
    // One block in reserve for each that runs: whoever is admitted now should not be preempted at
    // the very next block boundary.
    if (available < waiting.blocks_needed + seated) {
      plan.short_of_blocks = true;
      return;
    }
    available -= waiting.blocks_needed;
    candidates.push_back(
        {.rank = waiting.rank,
         .index = static_cast<int32_t>(input.running.size() + plan.admitted.size()),
         .remaining = waiting.num_tokens - waiting.num_computed});
    plan.admitted.push_back(static_cast<int32_t>(i));
    ++seated;
  }
}

// Rows for those with more than one token to compute, out of what decoding left.
void ShareRows(std::vector<const Candidate*> catching_up, int32_t budget,
               std::vector<int32_t>& rows) {
  if (catching_up.empty()) return;
  const auto oldest =
      std::min_element(catching_up.begin(), catching_up.end(),
                       [](const Candidate* a, const Candidate* b) { return a->rank < b->rank; });
  const Candidate* first = *oldest;
  rows[first->index] = std::min(first->remaining, (budget + 1) / 2);
  budget -= rows[first->index];
  std::stable_sort(
      catching_up.begin(), catching_up.end(),
      [](const Candidate* a, const Candidate* b) { return a->remaining < b->remaining; });
  for (const Candidate* candidate : catching_up) {
    const int32_t more = std::min(candidate->remaining - rows[candidate->index], budget);
    rows[candidate->index] += more;
    budget -= more;
  }
}

}  // namespace

Clock::time_point Rank(Clock::time_point arrival, Priority priority) {
  return arrival -
         kPriorityBonus * (static_cast<int>(priority) - static_cast<int>(Priority::kNormal));
}

StepPlan PlanStep(const SchedulerInput& input) {
  StepPlan plan;
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < input.running.size(); ++i) {
    const RunningSequence& sequence = input.running[i];
    candidates.push_back({.rank = sequence.rank,
                          .paused = sequence.paused,
                          .index = static_cast<int32_t>(i),
                          .remaining = sequence.num_tokens - sequence.num_computed});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return std::pair(a.paused, a.rank) < std::pair(b.paused, b.rank);
                   });

  int32_t available = input.available_blocks;
  AssignBlocks(input, candidates, available, plan);
  plan.short_of_blocks = !plan.preempted.empty();
  if (plan.preempted.empty()) Admit(input, available, candidates, plan);
  const auto seated = static_cast<int32_t>(input.running.size() + plan.admitted.size());
  if (!plan.short_of_blocks) plan.spare_blocks = std::max(0, available - seated);

  std::vector<int32_t> rows(input.running.size() + plan.admitted.size(), 0);
  std::vector<const Candidate*> catching_up;
  int32_t budget = input.max_step_tokens;
  for (const Candidate& candidate : candidates) {
    if (!candidate.runs || candidate.paused) continue;
    if (candidate.remaining == 1 && budget > 0) {
      rows[candidate.index] = 1;
      --budget;
    } else {
      catching_up.push_back(&candidate);
    }
  }
  ShareRows(catching_up, budget, rows);

  for (const Candidate& candidate : candidates) {
    if (candidate.runs && (rows[candidate.index] > 0 || candidate.new_blocks > 0)) {
      plan.work.push_back({candidate.index, rows[candidate.index], candidate.new_blocks});
    }
  }
  return plan;
}

}  // namespace eta
