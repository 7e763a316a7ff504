#include "engine/batching/turns.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace eta {

Turns::Turns(const SchedulerInput& input) : input_(input) {
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
  state_.turn = input.turn < queues_.size() ? input.turn : 0;
}

bool Turns::MayBeAdmitted(const Queue& queue) const {
  if (queue.next == queue.waiting.size() || queue.slots >= queue.terms.max_slots) return false;
  // One that is over the limit alone, because the limit has been lowered, runs alone.
  return queue.terms.max_kv_tokens == 0 || queue.kv_tokens == 0 ||
         queue.kv_tokens + Head(queue).kv_tokens <= queue.terms.max_kv_tokens;
}

double Turns::Lacks(size_t tenant) const {
  return Head(queues_[tenant]).cost - asked_.deficits[tenant];
}

// The rounds in which nobody could afford a slot, all but the last of them, at once.
void Turns::Refill() {
  double rounds = std::numeric_limits<double>::max();
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (!MayBeAdmitted(queues_[i])) continue;
    rounds = std::min(rounds, std::ceil(Lacks(i) / (kTurnTokens * queues_[i].terms.weight)));
  }
  if (rounds <= 1.0) return;
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (!MayBeAdmitted(queues_[i])) continue;
    asked_.deficits[i] += (rounds - 1.0) * kTurnTokens * queues_[i].terms.weight;
  }
}

std::optional<size_t> Turns::Next() {
  asked_ = state_;
  if (std::none_of(queues_.begin(), queues_.end(),
                   [this](const Queue& queue) { return MayBeAdmitted(queue); })) {
    return std::nullopt;
  }
  const auto affords = [this] {
    return MayBeAdmitted(queues_[asked_.turn]) && Lacks(asked_.turn) <= 0.0;
  };
  if (!affords()) Refill();
  while (!affords()) {
    asked_.turn = (asked_.turn + 1) % queues_.size();
    const Queue& queue = queues_[asked_.turn];
    if (MayBeAdmitted(queue)) asked_.deficits[asked_.turn] += kTurnTokens * queue.terms.weight;
  }
  const Queue& queue = queues_[asked_.turn];
  return queue.waiting[queue.next];
}

void Turns::Admit() {
  state_ = asked_;
  Queue& queue = queues_[state_.turn];
  const WaitingSequence& admitted = Head(queue);
  state_.deficits[state_.turn] -= admitted.cost;
  queue.kv_tokens += admitted.kv_tokens;
  ++queue.slots;
  ++queue.next;
  // Who wants nothing saves nothing up.
  if (queue.next == queue.waiting.size() && !queue.held) state_.deficits[state_.turn] = 0.0;
}

}  // namespace eta
