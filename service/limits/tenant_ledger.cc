#include "service/limits/tenant_ledger.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

// Of the hint when to come back for a place.
constexpr milliseconds kFirstWait{1000};  // before any call has ended
constexpr milliseconds kShortestWait{20};
constexpr milliseconds kLongestWait{10'000};
constexpr double kNewestShare = 0.2;  // of the moving mean

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

TenantLedger::Lease::Lease(TenantLedger& ledger, Tenant tenant, Account& account,
                           Clock::time_point entered)
    : ledger_(&ledger), tenant_(std::move(tenant)), account_(&account), entered_(entered) {}

TenantLedger::Lease::Lease(Lease&& other) noexcept {
  *this = std::move(other);
}

TenantLedger::Lease& TenantLedger::Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  ledger_ = std::exchange(other.ledger_, nullptr);
  tenant_ = std::exchange(other.tenant_, std::nullopt);
  account_ = std::exchange(other.account_, nullptr);
  entered_ = other.entered_;
  charged_ = std::exchange(other.charged_, 0);
  used_ = std::exchange(other.used_, 0);
  return *this;
}

absl::Status TenantLedger::Lease::Charge(int64_t tokens) {
  return ledger_ == nullptr ? absl::OkStatus() : ledger_->Charge(*this, tokens);
}

void TenantLedger::Lease::Release() {
  if (ledger_ != nullptr) ledger_->Release(*this);
}

TenantLedger::TenantLedger(const TenantLimits& limits, std::function<Clock::time_point()> now)
    : limits_(limits), now_(std::move(now)) {}

absl::StatusOr<TenantLedger::Lease> TenantLedger::Enter(const Tenant& tenant) {
  const TenantLimit limit = limits_.Of(tenant);
  const Clock::time_point now = now_();
  const std::lock_guard lock(mutex_);
  Account& account = Find(tenant, now);
  if (limit.max_calls > 0 && account.calls >= limit.max_calls) {
    return TooManyCalls(limit, account.mean_seconds);
  }
  ++account.calls;
  return Lease(*this, tenant, account, now);
}

absl::Status TenantLedger::Charge(Lease& lease, int64_t tokens) {
  const TenantLimit limit = limits_.Of(*lease.tenant_);
  const Clock::time_point now = now_();
  const std::lock_guard lock(mutex_);
  TokenBudget& budget = lease.account_->budget;
  const TokenBudget::Size size = SizeOf(limit);
  budget.GiveBack(std::exchange(lease.charged_, 0), size, now);
  if (!HasBudget(limit)) {
    budget.Forget();
    return absl::OkStatus();
  }
  if (budget.Take(tokens, size, now)) {
    lease.charged_ = tokens;
    return absl::OkStatus();
  }
  if (budget.Take(lease.used_, size, now)) lease.charged_ = lease.used_;
  if (tokens > limit.burst_tokens) return TooManyTokens(limit, tokens, std::nullopt);
  return TooManyTokens(limit, tokens, budget.Wait(tokens, size, now));
}

void TenantLedger::Release(Lease& lease) {
  const TokenBudget::Size size = SizeOf(limits_.Of(*lease.tenant_));
  const Clock::time_point now = now_();
  const std::lock_guard lock(mutex_);
  Account& account = *lease.account_;
  const int64_t unused = lease.charged_ - std::clamp<int64_t>(lease.used_, 0, lease.charged_);
  account.budget.GiveBack(unused, size, now);
  --account.calls;
  const double seconds = std::chrono::duration<double>(now - lease.entered_).count();
  account.mean_seconds =
      account.mean_seconds == 0.0
          ? seconds
          : account.mean_seconds + kNewestShare * (seconds - account.mean_seconds);
  lease.ledger_ = nullptr;
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

// Not at every call, so that a flood of names does not look at every account for each of them.
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

bool TenantLedger::Idle(const Account& account, const TenantLimit& limit,
                        Clock::time_point now) const {
  if (account.calls > 0) return false;
  return !HasBudget(limit) || account.budget.Owed(SizeOf(limit), now) == 0.0;
}

std::vector<TenantUse> TenantLedger::Uses() const {
  std::vector<std::string> names = limits_.Named();
  {
    const Clock::time_point now = now_();
    const std::lock_guard lock(mutex_);
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
  const std::lock_guard lock(mutex_);
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
  const std::lock_guard lock(mutex_);
  return accounts_.size();
}

}  // namespace eta
