// Deficit round robin over the tenants of a scheduler's input: whose request is next. Part of the
// scheduler; pure, like it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/batching/scheduler.h"

namespace eta {

class Turns {
 public:
  explicit Turns(const SchedulerInput& input);

  // The waiting sequence that is next, as an index into the input; nothing if nobody may be
  // admitted. Asking changes nothing.
  std::optional<size_t> Next();
  // Slots the one that Next gave.
  void Admit();

  // As they stand after what was admitted.
  const std::vector<double>& deficits() const { return state_.deficits; }
  size_t turn() const { return state_.turn; }

 private:
  struct Queue {
    TenantTurn terms;
    std::vector<size_t> waiting;  // those that are not held, in order
    size_t next = 0;
    bool held = false;  // some are
    int32_t slots = 0;
    int64_t kv_tokens = 0;
  };
  struct State {
    std::vector<double> deficits;
    size_t turn = 0;
  };

  bool MayBeAdmitted(const Queue& queue) const;
  double Lacks(size_t tenant) const;
  void Refill();
  const WaitingSequence& Head(const Queue& queue) const {
    return input_.waiting[queue.waiting[queue.next]];
  }

  const SchedulerInput& input_;
  std::vector<Queue> queues_;
  State state_;
  State asked_;  // what it becomes if the one that Next gave is admitted
};

}  // namespace eta
