// The tenants whose requests a batcher holds, or held lately: the share of each, its deficit in the
// round robin, and what it holds now. Bounded: a tenant is forgotten RecentPeak::kTime after its
// last request at the latest. Not thread-safe: the step thread's.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/batching/estimates/recent_peak.h"
#include "engine/batching/fairness/tenant_queue.h"
#include "engine/batching/scheduler.h"
#include "engine/batching/sequence.h"

namespace eta {

struct TenantAccount {
  TenantShare share;
  double deficit = 0.0;
  TenantQueue queue;  // as of the last Count
  // Slots that it had use for lately. So many, up to its share, are kept for it while others have
  // more than theirs: a tenant that comes and goes finds a slot free. "Lately" counts steps, since
  // a slot comes free soon where answers are short.
  RecentPeak wanted;
  int32_t index = 0;
};

class TenantShares {
 public:
  // A share's weight within its bounds.
  static double Weight(const TenantShare& share);

  // The account of the request's tenant, which has the request's share from now on. It lives for as
  // long as Count finds a sequence that points to it.
  TenantAccount& Join(const Request& request);
  void BeginStep() { ++step_; }
  // What everybody holds now.
  void Count(std::span<const std::unique_ptr<Sequence>> running,
             std::span<const std::unique_ptr<Sequence>> waiting, Clock::time_point now);

  // Fills in the tenants of a scheduler's input.
  void Describe(SchedulerInput& input) const;
  // Makes what a plan left of the round robin the state of the next one.
  void Commit(const StepPlan& plan);
  // How many slots each tenant may have, by index, as of the last Count.
  std::vector<int32_t> MaxSlots(int32_t max_running) const;

  size_t size() const { return accounts_.size(); }
  const std::vector<std::unique_ptr<TenantAccount>>& accounts() const { return accounts_; }

 private:
  std::vector<std::unique_ptr<TenantAccount>> accounts_;  // in the order of their rounds
  size_t current_ = 0;                                    // whose round it is
  int64_t step_ = 0;
};

}  // namespace eta
