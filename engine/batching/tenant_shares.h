// The tenants whose requests a batcher holds, or held lately: what each is entitled to, what it has
// taken in the round, and what it holds now. Bounded: a tenant is forgotten RecentPeak::kTime after
// its last request at the latest. Not thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/batching/estimates/recent_peak.h"
#include "engine/batching/scheduler.h"
#include "engine/batching/sequence.h"
#include "engine/batching/tenant_queue.h"

namespace eta {

struct TenantAccount {
  TenantShare share;
  double deficit = 0.0;
  TenantQueue queue;  // as of the last Count
  // Slots that it has use for. As many as were lately, up to its share, are kept for it while
  // others have more than theirs, so that a tenant which comes and goes finds a slot free. Where
  // answers are short a slot comes free soon enough, hence lately counts steps.
  RecentPeak wanted;
  int32_t index = 0;
};

class TenantShares {
 public:
  // A share's weight within its bounds.
  static double Weight(const TenantShare& share);

  // The account of the request's tenant, whose terms become the request's. It stays for as long as
  // sequences that are counted point to it.
  TenantAccount& Join(const Request& request);
  void BeginStep() { ++step_; }
  // What everybody holds now.
  void Count(std::span<const std::unique_ptr<Sequence>> running,
             std::span<const std::unique_ptr<Sequence>> waiting, Clock::time_point now);

  // For the scheduler, and what it says of them.
  void Describe(SchedulerInput& input) const;
  void Take(const StepPlan& plan);
  // How many slots each tenant may have, by index, as of the last Count.
  std::vector<int32_t> MaxSlots(int32_t max_running) const;

  size_t size() const { return accounts_.size(); }
  const std::vector<std::unique_ptr<TenantAccount>>& accounts() const { return accounts_; }

 private:
  std::vector<std::unique_ptr<TenantAccount>> accounts_;  // in the order of their turns
  size_t turn_ = 0;
  int64_t step_ = 0;
};

}  // namespace eta
