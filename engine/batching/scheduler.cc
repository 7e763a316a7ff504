// lint: fuzz-covered
#include "engine/batching/scheduler.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "engine/batching/fairness/deficit_round_robin.h"

namespace eta {
namespace {

// A running or admitted sequence while the plan is made.
struct Candidate {
  Clock::time_point rank;
  bool paused = false;
  int32_t tenant = 0;
  int32_t index = 0;
  int32_t remaining = 0;  // tokens to compute
  int32_t new_blocks = 0;
  bool runs = true;
  bool makes_draft = false;
};

// Counts what preempted sequences give back: the blocks that nobody else holds any more.
class Reclaimed {
 public:
  explicit Reclaimed(std::span<const int32_t> references) : references_(references) {}

  // Returns how many of the sequence's blocks are free now.
  int32_t Release(const RunningSequence& sequence) {
    int32_t freed = Release(sequence.blocks);
    for (const std::vector<int32_t>& blocks : sequence.more_blocks) freed += Release(blocks);
    return freed;
  }

 private:
  int32_t Release(std::span<const int32_t> blocks) {
    int32_t freed = 0;
    for (const int32_t block : blocks) {
      if (block >= 0 && ++released_[block] == references_[block]) ++freed;
    }
    return freed;
  }

  std::span<const int32_t> references_;
  std::unordered_map<int32_t, int32_t> released_;
};

double WeightOf(const SchedulerInput& input, int32_t tenant) {
  return input.tenants.empty() ? 1.0 : input.tenants[tenant].weight;
}

int32_t Groups(const SchedulerInput& input) {
  return input.full_groups + input.window_groups;
}

int32_t Held(const SchedulerInput& input, const RunningSequence& sequence) {
  const auto length = static_cast<int32_t>(sequence.blocks.size());
  if (input.window_groups == 0) return input.full_groups * length;
  const auto held = [](std::span<const int32_t> blocks) {
    return static_cast<int32_t>(std::ranges::count_if(blocks, [](int32_t id) { return id >= 0; }));
  };
  int32_t sum = held(sequence.blocks);
  for (const std::vector<int32_t>& blocks : sequence.more_blocks) sum += held(blocks);
  return sum;
}

// Blocks that the sequence lacks for its tokens in full layers.
int32_t FullLacking(const SchedulerInput& input, const RunningSequence& sequence) {
  if (input.full_groups == 0) return 0;
  const int32_t lacking = BlocksFor(sequence.num_tokens, input.block_size) -
                          static_cast<int32_t>(sequence.blocks.size());
  return input.full_groups * std::max(0, lacking);
}

// Blocks that it lacks for its next `rows` rows in windows.
int32_t WindowLacking(const SchedulerInput& input, const RunningSequence& sequence, int32_t rows) {
  const int32_t wanted = BlocksFor(sequence.num_computed + rows, input.block_size);
  return input.window_groups * std::max(0, wanted - sequence.window_blocks);
}

// The order in which sequences are given blocks; they lose them in the reverse order. The earliest
// rank is first, so that it always advances. The others follow by what their tenant holds, up to
// and with them, for its weight.
std::vector<Candidate*> OrderForBlocks(const SchedulerInput& input,
                                       std::vector<Candidate>& by_rank) {
  std::vector<Candidate*> order;
  for (Candidate& candidate : by_rank) order.push_back(&candidate);
  if (input.tenants.size() < 2 || by_rank.empty()) return order;
  std::vector<double> held(input.tenants.size(), 0.0);
  std::vector<double> position(by_rank.size());  // by index
  for (const Candidate& candidate : by_rank) {
    double& blocks = held[candidate.tenant];
    blocks += static_cast<double>(Held(input, input.running[candidate.index]));
    position[candidate.index] = blocks / WeightOf(input, candidate.tenant);
  }
  position[by_rank.front().index] = -1.0;
  std::stable_sort(order.begin(), order.end(), [&](const Candidate* a, const Candidate* b) {
    return std::pair(a->paused, position[a->index]) < std::pair(b->paused, position[b->index]);
  });
  return order;
}

// Gives every candidate that runs the blocks it lacks, first to last, freeing from the last.
void AssignBlocks(const SchedulerInput& input, const std::vector<Candidate*>& order,
                  int32_t& available, StepPlan& plan) {
  Reclaimed reclaimed(input.references);
  size_t last = order.size();
  for (size_t i = 0; i < last; ++i) {
    Candidate& candidate = *order[i];
    const RunningSequence& sequence = input.running[candidate.index];
    const int32_t needed = FullLacking(input, sequence) + WindowLacking(input, sequence, 1);
    if (needed == 0) continue;
    if (sequence.paused) continue;
    while (available < needed && last > i + 1) {
      Candidate& victim = *order[--last];
      victim.runs = false;
      available += reclaimed.Release(input.running[victim.index]);
      plan.preempted.push_back(victim.index);
    }
    if (available < needed) {  // it is itself the last one left
      candidate.runs = false;
      available += reclaimed.Release(sequence);
      plan.preempted.push_back(candidate.index);
      return;
    }
    available -= needed;
    candidate.new_blocks = needed;
  }
}

// Preempts sequences that have been paused for long, last to first, if that gives the next request
// the blocks that it lacks. Blocks that it shares with them are not gained. The request is admitted
// in the next step, by what is free then.
void Yield(const SchedulerInput& input, const std::vector<Candidate*>& order, int32_t lacking,
           StepPlan& plan) {
  Reclaimed reclaimed(input.references);
  std::vector<Candidate*> victims;
  for (auto last = order.rbegin(); last != order.rend() && lacking > 0; ++last) {
    const RunningSequence& sequence = input.running[(*last)->index];
    if (!sequence.yields) continue;
    lacking -= reclaimed.Release(sequence);
    victims.push_back(*last);
  }
  if (lacking > 0) return;
  for (Candidate* victim : victims) {
    victim->runs = false;
    plan.preempted.push_back(victim->index);
  }
}

// Admits whom slots and blocks suffice for. Returns the blocks that the next request lacks; 0: it
// lacks none, or something else.
int32_t Admit(const SchedulerInput& input, int32_t& available, std::vector<Candidate>& candidates,
              StepPlan& plan) {
  int32_t lacking = 0;
  auto in_slots = static_cast<int32_t>(
      std::count_if(input.running.begin(), input.running.end(),
                    [](const RunningSequence& sequence) { return !sequence.paused; }));
  DeficitRoundRobin round_robin(input);
  while (const auto next = round_robin.Next()) {
    const WaitingSequence& waiting = input.waiting[*next];
    if (in_slots >= input.max_running) break;
    // A block of each group stays in reserve for each that runs, so that whoever is admitted now is
    // not preempted at the very next block boundary.
    const int32_t reserve = in_slots * Groups(input);
    if (available < waiting.blocks_needed + reserve) {
      lacking = waiting.blocks_needed + waiting.blocks_shared + reserve - available;
      plan.short_of_blocks = true;
      break;
    }
    round_robin.Admit();
    available -= waiting.blocks_needed;
    candidates.push_back(
        {.rank = waiting.rank,
         .tenant = waiting.tenant,
         .index = static_cast<int32_t>(input.running.size() + plan.admitted.size()),
         .remaining = waiting.num_tokens - waiting.num_computed});
    plan.admitted.push_back(static_cast<int32_t>(*next));
    ++in_slots;
  }
  plan.deficits = round_robin.deficits();
  plan.current_tenant = round_robin.current_tenant();
  return lacking;
}

bool Earlier(const Candidate* a, const Candidate* b) {
  return a->rank < b->rank;
}

// Rows for those of one tenant with more than one token to compute.
void ShareRows(std::vector<const Candidate*> catching_up, int32_t budget,
               std::vector<int32_t>& rows) {
  const Candidate* first = *std::min_element(catching_up.begin(), catching_up.end(), Earlier);
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

// Divides the rows that decoding left between the tenants by weight; what one does not need goes to
// others. The earliest sequence of all has a row at least, so that it advances however small its
// tenant's weight is.
void ShareRowsOfTenants(const SchedulerInput& input,
                        const std::vector<const Candidate*>& catching_up, int32_t budget,
                        std::vector<int32_t>& rows) {
  if (catching_up.empty() || budget == 0) return;
  struct Demand {
    double weight = 1.0;
    int64_t rows = 0;
    int32_t granted = 0;
    std::vector<const Candidate*> of;
  };
  std::vector<Demand> demands(std::max<size_t>(1, input.tenants.size()));
  for (const Candidate* candidate : catching_up) {
    Demand& demand = demands[candidate->tenant];
    demand.weight = WeightOf(input, candidate->tenant);
    demand.rows += candidate->remaining;
    demand.of.push_back(candidate);
  }
  Demand& earliest =
      demands[(*std::min_element(catching_up.begin(), catching_up.end(), Earlier))->tenant];
  earliest.granted = 1;
  --budget;
  std::vector<Demand*> by_need;  // the least for its weight first, so that what it leaves is known
  double weights = 0.0;
  for (Demand& demand : demands) {
    if (demand.of.empty()) continue;
    by_need.push_back(&demand);
    weights += demand.weight;
  }
  std::stable_sort(by_need.begin(), by_need.end(), [](const Demand* a, const Demand* b) {
    return static_cast<double>(a->rows) / a->weight < static_cast<double>(b->rows) / b->weight;
  });
  for (Demand* demand : by_need) {
    const bool last = demand == by_need.back();
    const auto fair = static_cast<int64_t>(std::ceil(budget * demand->weight / weights));
    const auto more = static_cast<int32_t>(
        std::min({demand->rows - demand->granted, last ? int64_t{budget} : fair, int64_t{budget}}));
    demand->granted += more;
    budget -= more;
    weights -= demand->weight;
    if (demand->granted > 0) ShareRows(demand->of, demand->granted, rows);
  }
}

// Holds replayed rows to what decoding leaves of max_decode_rows, the first candidates first. Each
// that has rows keeps one: at most max_running have any.
void LimitReplays(const SchedulerInput& input, const std::vector<Candidate>& candidates,
                  std::vector<int32_t>& rows) {
  const auto replays = [&](const Candidate& candidate) {
    return static_cast<size_t>(candidate.index) < input.running.size() &&
           input.running[candidate.index].replays;
  };
  int32_t left = input.max_decode_rows;
  for (const Candidate& candidate : candidates) {
    const int32_t of_candidate = rows[candidate.index];
    if (of_candidate == 1 || (of_candidate > 0 && replays(candidate))) --left;
  }
  for (const Candidate& candidate : candidates) {
    int32_t& of_candidate = rows[candidate.index];
    if (of_candidate <= 1 || !replays(candidate)) continue;
    const int32_t more = std::min(of_candidate - 1, left);
    of_candidate = 1 + more;
    left -= more;
  }
}

// Holds rows to those for which windows get their blocks, the first candidates first. Each has the
// blocks of one row, and who is admitted has those of a whole step.
void LimitToWindows(const SchedulerInput& input, std::vector<Candidate>& candidates,
                    int32_t& available, std::vector<int32_t>& rows, StepPlan& plan) {
  if (input.window_groups == 0) return;
  for (Candidate& candidate : candidates) {
    int32_t& of_candidate = rows[candidate.index];
    if (of_candidate <= 1 || static_cast<size_t>(candidate.index) >= input.running.size()) continue;
    const RunningSequence& sequence = input.running[candidate.index];
    const int32_t of_one = WindowLacking(input, sequence, 1);
    int32_t more = WindowLacking(input, sequence, of_candidate) - of_one;
    if (more > available) {
      const int32_t held =
          std::max(sequence.window_blocks, BlocksFor(sequence.num_computed + 1, input.block_size));
      const int32_t end = (held + available / input.window_groups) * input.block_size;
      of_candidate = std::min(of_candidate, end - sequence.num_computed);
      more = WindowLacking(input, sequence, of_candidate) - of_one;
      plan.short_of_blocks = true;
    }
    available -= more;
    candidate.new_blocks += more;
  }
}

// Blocks that the candidate lacks for `drafts` rows behind its newest token's, beside those that it
// is given.
int32_t LackingForDrafts(const SchedulerInput& input, const Candidate& candidate, int32_t drafts) {
  RunningSequence sequence = input.running[candidate.index];
  sequence.num_tokens = sequence.num_computed + 1 + drafts;
  return FullLacking(input, sequence) + WindowLacking(input, sequence, 1 + drafts) -
         candidate.new_blocks;
}

// Gives the rows and free blocks that nobody else uses to drafts, the first candidates first. Rows
// make drafts only where none is of a prompt: a step that is long for another's sake brings no
// token then.
void AddDrafts(const SchedulerInput& input, int32_t free_blocks, bool prompts,
               std::vector<Candidate>& candidates, std::vector<int32_t>& rows) {
  int32_t left = input.max_step_tokens;
  int32_t decode_left = input.max_decode_rows;
  for (const Candidate& candidate : candidates) {
    const int32_t of_candidate = rows[candidate.index];
    const bool running = static_cast<size_t>(candidate.index) < input.running.size();
    left -= of_candidate;
    if (of_candidate == 1 || (running && input.running[candidate.index].replays)) {
      decode_left -= of_candidate;
    }
  }
  free_blocks = std::max(0, free_blocks);
  for (Candidate& candidate : candidates) {
    if (candidate.remaining != 1 || rows[candidate.index] != 1) continue;
    if (static_cast<size_t>(candidate.index) >= input.running.size()) continue;
    const RunningSequence& sequence = input.running[candidate.index];
    int32_t drafts = sequence.drafts;
    candidate.makes_draft = sequence.makes_draft && !prompts &&
                            LackingForDrafts(input, candidate, drafts) <= free_blocks;
    if (!candidate.makes_draft) {
      drafts = std::min({drafts, left, decode_left});
      while (drafts > 0 && LackingForDrafts(input, candidate, drafts) > free_blocks) --drafts;
      if (drafts <= 0) continue;
      rows[candidate.index] += drafts;
      left -= drafts;
      decode_left -= drafts;
    }
    const int32_t more = std::max(0, LackingForDrafts(input, candidate, drafts));
    candidate.new_blocks += more;
    free_blocks -= more;
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
  candidates.reserve(input.running.size() + input.waiting.size());  // others point into it
  for (size_t i = 0; i < input.running.size(); ++i) {
    const RunningSequence& sequence = input.running[i];
    candidates.push_back({.rank = sequence.rank,
                          .paused = sequence.paused,
                          .tenant = sequence.tenant,
                          .index = static_cast<int32_t>(i),
                          .remaining = sequence.num_tokens - sequence.num_computed});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return std::pair(a.paused, a.rank) < std::pair(b.paused, b.rank);
                   });

  int32_t available = input.available_blocks;
  const std::vector<Candidate*> order = OrderForBlocks(input, candidates);
  AssignBlocks(input, order, available, plan);
  plan.short_of_blocks = !plan.preempted.empty();
  plan.current_tenant = input.current_tenant;
  for (const TenantRound& tenant : input.tenants) plan.deficits.push_back(tenant.deficit);
  int32_t lacking = 0;
  if (plan.preempted.empty()) {
    lacking = Admit(input, available, candidates, plan);
    if (lacking > 0 && plan.admitted.empty()) Yield(input, order, lacking, plan);
  }
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
  ShareRowsOfTenants(input, catching_up, budget, rows);
  LimitReplays(input, candidates, rows);
  LimitToWindows(input, candidates, available, rows, plan);
  const auto in_slots = static_cast<int32_t>(input.running.size() + plan.admitted.size());
  if (!plan.short_of_blocks) {
    plan.spare_blocks = std::max(0, available - in_slots * Groups(input));
    const int32_t taken = input.available_blocks - available;
    if (lacking == 0) {
      AddDrafts(input, input.free_blocks - taken, !catching_up.empty(), candidates, rows);
    }
  }

  for (const Candidate& candidate : candidates) {
    if (candidate.runs && (rows[candidate.index] > 0 || candidate.new_blocks > 0)) {
      plan.work.push_back(
          {candidate.index, rows[candidate.index], candidate.new_blocks, candidate.makes_draft});
    }
  }
  return plan;
}

}  // namespace eta
