// Deficit round robin over the tenants of a scheduler's input (Shreedhar and Varghese, SIGCOMM
// 1995): whose request is next. A tenant's round adds its quantum to its deficit, and the tenant's
// requests are admitted for as long as the deficit pays for them; then the next tenant has its
// round. Part of the scheduler, and pure like it. Not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/batching/scheduler.h"

namespace eta {

class DeficitRoundRobin {
 public:
  // `input` must outlive this.
  explicit DeficitRoundRobin(const SchedulerInput& input);

  // The waiting sequence that is next, as an index into the input; nothing if nobody may be
  // admitted. Changes nothing that Admit has not confirmed.
  std::optional<size_t> Next();
  // Admits the one that Next gave.
  void Admit();

  // As they stand after what was admitted.
  const std::vector<double>& deficits() const { return state_.deficits; }
  size_t current_tenant() const { return state_.tenant; }

 private:
  struct Queue {
    TenantRound terms;
    std::vector<size_t> waiting;  // those that are not held, in order
    size_t next = 0;
    bool held = false;  // some are
    int32_t slots = 0;
    int64_t kv_tokens = 0;
  };
  struct State {
    std::vector<double> deficits;
    size_t tenant = 0;  // whose round it is
  };

  bool MayBeAdmitted(const Queue& queue) const;
  // Tokens that a tenant's deficit lacks for its next request; at most 0: it pays.
  double Lacking(size_t tenant) const;
  void SkipRounds();
  const WaitingSequence& Head(const Queue& queue) const {
    return input_.waiting[queue.waiting[queue.next]];
  }

  const SchedulerInput& input_;
  std::vector<Queue> queues_;
  State state_;
  State proposed_;  // what it becomes if the one that Next gave is admitted
};

}  // namespace eta
