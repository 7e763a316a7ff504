// How much each tenant uses now: concurrent calls and token budgets, compared with TenantLimits.
// Thread-safe; must outlive its leases.
//
// An account without calls and debt is equal to a new one, so it is dropped when room is needed. So
// names that nobody uses again cost nothing, and no debt is forgotten. If there is still no room,
// tenants that the limits do not name share one account.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/lease.h"
#include "engine/base/mutex.h"
#include "engine/base/tenant.h"
#include "service/limits/tenant_limits.h"
#include "service/limits/token_budget.h"

namespace eta {

// A tenant's use at one moment.
struct TenantUse {
  std::string tenant;
  TenantLimit limit;
  int64_t calls = 0;
  std::optional<int64_t> tokens_left;  // of burst_tokens; absent without a budget
};

class TenantLedger {
  struct Call;

 public:
  static constexpr size_t kMaxAccounts = 4096;  // beside those of tenants that the limits name
  static constexpr std::chrono::milliseconds kSweepPeriod{100};

  // `now` is for tests.
  explicit TenantLedger(const TenantLimits& limits,
                        std::function<Clock::time_point()> now = Clock::now);

  // One call's place, and its tokens once Charge debited them. Gives everything back when it is
  // destroyed or released. Used by one thread at a time.
  class Lease {
   public:
    Lease() = default;

    // Debits what the call may cost at most; once more: that instead. OK for a lease that is empty.
    // RESOURCE_EXHAUSTED (TENANT_TOKENS): with the time until there is enough, or without one,
    // which says do not retry, if the burst is smaller than that. What was used of an earlier
    // charge stays debited then.
    absl::Status Charge(int64_t tokens);
    // Of the charge the call used so many; the rest goes back on release.
    void Use(int64_t tokens);
    void Release();

   private:
    friend class TenantLedger;
    explicit Lease(std::shared_ptr<Call> call);

    std::shared_ptr<Call> call_;  // null: empty
    eta::Lease place_;            // keeps the call too
  };

  // RESOURCE_EXHAUSTED (TENANT_CALLS), with the time in which one of the tenant's calls should end.
  absl::StatusOr<Lease> Enter(const Tenant& tenant);
  // For work that outlives its calls: it has tokens to debit, and no call's place.
  Lease Open(const Tenant& tenant);

  // The use of tenants that have calls or owe tokens, and of those that the limits name, by name;
  // and the use of one tenant.
  std::vector<TenantUse> Uses() const;
  TenantUse UseOf(const Tenant& tenant) const;

  size_t accounts() const;

 private:
  struct Account {
    int64_t calls = 0;
    int64_t leases = 0;  // calls among them
    TokenBudget budget;
    double mean_seconds = 0.0;  // moving mean of calls that ended; 0: none has
    bool named = false;         // the limits named it when it was made
  };

  // One call, as its lease keeps it.
  struct Call {
    TenantLedger& ledger;
    const Tenant tenant;
    Account& account;
    const Clock::time_point entered;
    const bool place = true;  // it counts as a call
    int64_t charged = 0;
    int64_t used = 0;
  };

  Account& Find(const Tenant& tenant, Clock::time_point now) REQUIRES(mutex_);
  void Sweep(Clock::time_point now) REQUIRES(mutex_);
  static bool Idle(const Account& account, const TenantLimit& limit, Clock::time_point now);

  absl::Status Charge(Call& call, int64_t tokens);
  void Release(const Call& call);

  const TenantLimits& limits_;
  const std::function<Clock::time_point()> now_;
  mutable Mutex mutex_;
  std::unordered_map<std::string, Account> accounts_ GUARDED_BY(mutex_);
  size_t unnamed_ GUARDED_BY(mutex_) = 0;  // of them
  Account crowd_ GUARDED_BY(mutex_);       // of those for whom there is no room
  std::optional<Clock::time_point> swept_ GUARDED_BY(mutex_);
};

}  // namespace eta
