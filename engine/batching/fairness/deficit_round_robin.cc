#include "engine/batching/fairness/deficit_round_robin.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace eta {

DeficitRoundRobin::DeficitRoundRobin(const SchedulerInput& input) : input_(input) {
  queues_.resize(std::max<size_t>(1, input.tenants.size()));
  for (size_t i = 0; i < input.tenants.size(); ++i) queues_[i].terms = input.tenants[i];
  for (const RunningSequence& sequence : input.running) {
    Queue& queue = queues_[sequence.tenant];
    queue.slots += sequence.paused ? 0 : 1;
    queue.kv_tokens += sequence.kv_tokens;
  }
  for (size_t i = 0; i < input.waiting.size(); ++i) {
    Queue& queue = queues_[input.waiting[i].tenant];
    if (input.waiting[i].held) {
      queue.held = true;
    } else {
      queue.waiting.push_back(i);
    }
  }
  for (const Queue& queue : queues_) state_.deficits.push_back(queue.terms.deficit);
  state_.tenant = input.current_tenant < queues_.size() ? input.current_tenant : 0;
}

bool DeficitRoundRobin::MayBeAdmitted(const Queue& queue) const {
  if (queue.next == queue.waiting.size() || queue.slots >= queue.terms.max_slots) return false;
  // A request that is over the limit by itself, because the limit was lowered, runs alone.
  return queue.terms.max_kv_tokens == 0 || queue.kv_tokens == 0 ||
         queue.kv_tokens + Head(queue).kv_tokens <= queue.terms.max_kv_tokens;
}

double DeficitRoundRobin::Lacking(size_t tenant) const {
  return Head(queues_[tenant]).cost - proposed_.deficits[tenant];
}

// Gives every tenant at once what it would have in the rounds in which no deficit pays for a slot,
// but for the last of them.
void DeficitRoundRobin::SkipRounds() {
  double rounds = std::numeric_limits<double>::max();
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (!MayBeAdmitted(queues_[i])) continue;
    rounds = std::min(rounds, std::ceil(Lacking(i) / (kQuantumTokens * queues_[i].terms.weight)));
  }
  if (rounds <= 1.0) return;
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (!MayBeAdmitted(queues_[i])) continue;
    proposed_.deficits[i] += (rounds - 1.0) * kQuantumTokens * queues_[i].terms.weight;
  }
}

std::optional<size_t> DeficitRoundRobin::Next() {
  proposed_ = state_;
  if (std::none_of(queues_.begin(), queues_.end(),
                   [this](const Queue& queue) { return MayBeAdmitted(queue); })) {
    return std::nullopt;
  }
  const auto pays = [this] {
    return MayBeAdmitted(queues_[proposed_.tenant]) && Lacking(proposed_.tenant) <= 0.0;
  };
  if (!pays()) SkipRounds();
  while (!pays()) {
    proposed_.tenant = (proposed_.tenant + 1) % queues_.size();
    const Queue& queue = queues_[proposed_.tenant];
    if (MayBeAdmitted(queue))
      proposed_.deficits[proposed_.tenant] += kQuantumTokens * queue.terms.weight;
  }
  const Queue& queue = queues_[proposed_.tenant];
  return queue.waiting[queue.next];
}

void DeficitRoundRobin::Admit() {
  state_ = proposed_;
  Queue& queue = queues_[state_.tenant];
  const WaitingSequence& admitted = Head(queue);
  state_.deficits[state_.tenant] -= admitted.cost;
  queue.kv_tokens += admitted.kv_tokens;
  ++queue.slots;
  ++queue.next;
  // A tenant with nothing waiting saves nothing up.
  if (queue.next == queue.waiting.size() && !queue.held) state_.deficits[state_.tenant] = 0.0;
}

}  // namespace eta
