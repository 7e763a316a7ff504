#include "service/limits/tenant_ledger.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

// The hint of when to come back for a place.
constexpr milliseconds kFirstWait{1000};  // before any call has ended
constexpr milliseconds kShortestWait{20};
constexpr milliseconds kLongestWait{10'000};
constexpr double kNewestShare = 0.2;  // weight of the newest call in the moving mean

bool HasBudget(const TenantLimit& limit) {
  return limit.tokens_per_second > 0.0;
}

TokenBudget::Size SizeOf(const TenantLimit& limit) {
  return {.tokens_per_second = limit.tokens_per_second, .burst_tokens = limit.burst_tokens};
}

absl::Status TooManyCalls(const TenantLimit& limit, double mean_seconds) {
  milliseconds wait = kFirstWait;
  if (mean_seconds > 0.0) {
    const double next = mean_seconds * 1e3 / static_cast<double>(limit.max_calls);
    wait = std::clamp(milliseconds(std::llround(next)), kShortestWait, kLongestWait);
  }
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "the tenant has as many calls running as it may",
                   {.reason = "TENANT_CALLS",
                    .metadata = {{"quota", "max_calls"}, {"limit", absl::StrCat(limit.max_calls)}},
                    .retry_after = wait});
}

absl::Status TooManyTokens(const TenantLimit& limit, int64_t tokens,
                           std::optional<milliseconds> wait) {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   wait ? "the tenant's token budget is used up for now"
                        : "the call needs more tokens than the tenant's budget ever holds",
                   {.reason = "TENANT_TOKENS",
                    .metadata = {{"quota", wait ? "tokens_per_second" : "burst_tokens"},
                                 {"limit", wait ? absl::StrCat(limit.tokens_per_second)
                                                : absl::StrCat(limit.burst_tokens)},
                                 {"tokens", absl::StrCat(tokens)}},
                    .retry_after = wait});
}

}  // namespace

TenantLedger::Lease::Lease(std::shared_ptr<Call> call)
    : call_(std::move(call)), place_([ended = call_] { ended->ledger.Release(*ended); }) {}

absl::Status TenantLedger::Lease::Charge(int64_t tokens) {
  return call_ == nullptr ? absl::OkStatus() : call_->ledger.Charge(*call_, tokens);
}

void TenantLedger::Lease::Use(int64_t tokens) {
  if (call_ != nullptr) call_->used = tokens;
}

void TenantLedger::Lease::Release() {
  place_.Release();
  call_.reset();
}

TenantLedger::TenantLedger(const TenantLimits& limits, std::function<Clock::time_point()> now)
    : limits_(limits), now_(std::move(now)) {}

absl::StatusOr<TenantLedger::Lease> TenantLedger::Enter(const Tenant& tenant) {
  const TenantLimit limit = limits_.Of(tenant);
  const Clock::time_point now = now_();
  const MutexLock lock(mutex_);
  Account& account = Find(tenant, now);
  if (limit.max_calls > 0 && account.calls >= limit.max_calls) {
    return TooManyCalls(limit, account.mean_seconds);
  }
  Lease lease(std::make_shared<Call>(
      Call{.ledger = *this, .tenant = tenant, .account = account, .entered = now}));
  ++account.calls;  // from here on nothing fails
  ++account.leases;
  return lease;
}

TenantLedger::Lease TenantLedger::Open(const Tenant& tenant) {
  const Clock::time_point now = now_();
  const MutexLock lock(mutex_);
  Account& account = Find(tenant, now);
  Lease lease(std::make_shared<Call>(
      Call{.ledger = *this, .tenant = tenant, .account = account, .entered = now, .place = false}));
  ++account.leases;
  return lease;
}

absl::Status TenantLedger::Charge(Call& call, int64_t tokens) {
  const TenantLimit limit = limits_.Of(call.tenant);
  const Clock::time_point now = now_();
  const MutexLock lock(mutex_);
  TokenBudget& budget = call.account.budget;
  const TokenBudget::Size size = SizeOf(limit);
  budget.Refund(std::exchange(call.charged, 0), size, now);
  if (!HasBudget(limit)) {
    budget.Forget();
    return absl::OkStatus();
  }
  if (budget.Debit(tokens, size, now)) {
    call.charged = tokens;
    return absl::OkStatus();
  }
  if (budget.Debit(call.used, size, now)) call.charged = call.used;
  if (tokens > limit.burst_tokens) return TooManyTokens(limit, tokens, std::nullopt);
  return TooManyTokens(limit, tokens, budget.Wait(tokens, size, now));
}

void TenantLedger::Release(const Call& call) {
  const TokenBudget::Size size = SizeOf(limits_.Of(call.tenant));
  const Clock::time_point now = now_();
  const MutexLock lock(mutex_);
  Account& account = call.account;
  const int64_t unused = call.charged - std::clamp<int64_t>(call.used, 0, call.charged);
  account.budget.Refund(unused, size, now);
  --account.leases;
  if (!call.place) return;
  --account.calls;
  const double seconds = std::chrono::duration<double>(now - call.entered).count();
  account.mean_seconds =
      account.mean_seconds == 0.0
          ? seconds
          : account.mean_seconds + kNewestShare * (seconds - account.mean_seconds);
}

TenantLedger::Account& TenantLedger::Find(const Tenant& tenant, Clock::time_point now) {
  const auto found = accounts_.find(tenant.id());
  if (found != accounts_.end()) return found->second;
  const bool named = limits_.Names(tenant);
  if (!named && unnamed_ >= kMaxAccounts) Sweep(now);
  if (!named && unnamed_ >= kMaxAccounts) return crowd_;
  Account& account = accounts_[tenant.id()];
  account.named = named;
  if (!named) ++unnamed_;
  return account;
}

// Sweeps at most once a period, so that a flood of names does not scan all accounts for each name.
void TenantLedger::Sweep(Clock::time_point now) {
  if (swept_ && now - *swept_ < kSweepPeriod) return;
  swept_ = now;
  std::erase_if(accounts_, [&](const auto& entry) {
    const auto tenant = Tenant::Parse(entry.first);
    return !tenant.ok() || Idle(entry.second, limits_.Of(*tenant), now);
  });
  unnamed_ = static_cast<size_t>(std::count_if(
      accounts_.begin(), accounts_.end(), [](const auto& entry) { return !entry.second.named; }));
}

bool TenantLedger::Idle(const Account& account, const TenantLimit& limit, Clock::time_point now) {
  if (account.leases > 0) return false;
  return !HasBudget(limit) || account.budget.Owed(SizeOf(limit), now) == 0.0;
}

std::vector<TenantUse> TenantLedger::Uses() const {
  std::vector<std::string> names = limits_.Named();
  {
    const Clock::time_point now = now_();
    const MutexLock lock(mutex_);
    for (const auto& [name, account] : accounts_) {
      const auto tenant = Tenant::Parse(name);
      if (tenant.ok() && !Idle(account, limits_.Of(*tenant), now)) names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::vector<TenantUse> uses;
  for (const std::string& name : names) {
    if (const auto tenant = Tenant::Parse(name); tenant.ok()) uses.push_back(UseOf(*tenant));
  }
  return uses;
}

TenantUse TenantLedger::UseOf(const Tenant& tenant) const {
  TenantUse use{.tenant = tenant.id(), .limit = limits_.Of(tenant), .tokens_left = std::nullopt};
  const Clock::time_point now = now_();
  const MutexLock lock(mutex_);
  const auto found = accounts_.find(tenant.id());
  if (found != accounts_.end()) use.calls = found->second.calls;
  if (!HasBudget(use.limit)) return use;
  use.tokens_left = use.limit.burst_tokens;
  if (found != accounts_.end()) {
    const double owed = found->second.budget.Owed(SizeOf(use.limit), now);
    *use.tokens_left =
        std::max<int64_t>(0, use.limit.burst_tokens - static_cast<int64_t>(std::ceil(owed)));
  }
  return use;
}

size_t TenantLedger::accounts() const {
  const MutexLock lock(mutex_);
  return accounts_.size();
}

}  // namespace eta
