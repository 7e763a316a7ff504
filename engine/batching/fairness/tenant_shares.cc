#include "engine/batching/fairness/tenant_shares.h"

#include <algorithm>

namespace eta {

double TenantShares::Weight(const TenantShare& share) {
  // A comparison that a NaN fails too.
  return share.weight >= TenantShare::kMinWeight ? std::min(share.weight, TenantShare::kMaxWeight)
                                                 : TenantShare::kMinWeight;
}

TenantAccount& TenantShares::Join(const Request& request) {
  auto found = std::find_if(accounts_.begin(), accounts_.end(), [&](const auto& account) {
    return account->queue.tenant == request.tenant;
  });
  if (found == accounts_.end()) {
    accounts_.push_back(std::make_unique<TenantAccount>());
    found = std::prev(accounts_.end());
    (*found)->index = static_cast<int32_t>(accounts_.size()) - 1;
    (*found)->queue.tenant = request.tenant;
  }
  TenantAccount& account = **found;
  account.share = request.share;
  account.share.weight = Weight(request.share);
  return account;
}

void TenantShares::Count(std::span<const std::unique_ptr<Sequence>> running,
                         std::span<const std::unique_ptr<Sequence>> waiting,
                         Clock::time_point now) {
  for (const auto& account : accounts_) {
    account->queue = {.tenant = std::move(account->queue.tenant), .weight = account->share.weight};
  }
  for (const auto& sequence : running) {
    TenantQueue& queue = sequence->account->queue;
    ++queue.running;
    if (sequence->paused_since) ++queue.paused;
    queue.kv_tokens += sequence->most_tokens();
  }
  for (const auto& sequence : waiting) {
    TenantQueue& queue = sequence->account->queue;
    ++queue.waiting;
    if (!sequence->started()) queue.waiting_tokens += sequence->prompt_len();
  }
  const TenantAccount* const current =
      current_ < accounts_.size() ? accounts_[current_].get() : nullptr;
  for (const auto& account : accounts_) {
    const int64_t wants = account->queue.running + account->queue.waiting;
    if (account->queue.waiting == 0) account->deficit = 0.0;
    account->wanted.Record(wants, now, step_);
  }
  std::erase_if(accounts_, [&](const auto& account) {
    return account->wanted.value() == 0 && account.get() != current;
  });
  for (size_t i = 0; i < accounts_.size(); ++i) {
    accounts_[i]->index = static_cast<int32_t>(i);
    if (accounts_[i].get() == current) current_ = i;
  }
}

// A tenant may have all slots but those that others have use for within their shares, and never
// fewer than its own share.
std::vector<int32_t> TenantShares::MaxSlots(int32_t max_running) const {
  double weights = 0.0;
  for (const auto& account : accounts_) weights += account->share.weight;
  std::vector<int64_t> fair;
  int64_t kept = 0;
  for (const auto& account : accounts_) {
    fair.push_back(static_cast<int64_t>(max_running * account->share.weight / weights));
    kept += std::min(account->wanted.value(), fair.back());
  }
  std::vector<int32_t> most;
  for (size_t i = 0; i < accounts_.size(); ++i) {
    const int64_t own = std::min(accounts_[i]->wanted.value(), fair[i]);
    most.push_back(
        static_cast<int32_t>(std::max({int64_t{1}, fair[i], max_running - (kept - own)})));
  }
  return most;
}

void TenantShares::Describe(SchedulerInput& input) const {
  const std::vector<int32_t> max_slots = MaxSlots(input.max_running);
  input.current_tenant = current_;
  for (const auto& account : accounts_) {
    input.tenants.push_back({.weight = account->share.weight,
                             .deficit = account->deficit,
                             .max_slots = max_slots[account->index],
                             .max_kv_tokens = account->share.max_kv_tokens});
  }
}

void TenantShares::Commit(const StepPlan& plan) {
  current_ = plan.current_tenant;
  for (size_t i = 0; i < plan.deficits.size() && i < accounts_.size(); ++i) {
    accounts_[i]->deficit = plan.deficits[i];
  }
}

}  // namespace eta
