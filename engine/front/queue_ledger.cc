#include "engine/front/queue_ledger.h"

#include <algorithm>
#include <utility>

#include "engine/batching/fairness/tenant_shares.h"

namespace eta {

// What one other tenant has while room is sought.
struct QueueLedger::Load {
  const Line* line;
  size_t requests;  // the oldest ones of the line: those that have not been displaced
  int64_t tokens;

  double Of(Limit limit) const {
    const auto amount =
        limit == Limit::kRequests ? static_cast<double>(requests) : static_cast<double>(tokens);
    return amount / line->weight;
  }
  const Item& newest() const { return line->items[requests - 1]; }
};

std::optional<QueueLedger::Limit> QueueLedger::Passed(int64_t requests, int64_t tokens) const {
  if (requests > max_requests_) return Limit::kRequests;
  if (requests > 1 && tokens > max_tokens_) return Limit::kTokens;
  return std::nullopt;
}

std::vector<QueueLedger::Load> QueueLedger::Loads(const Request& request) const {
  std::vector<Load> loads;
  for (const auto& [tenant, line] : lines_) {
    if (tenant == request.tenant) continue;
    loads.push_back({.line = &line, .requests = line.items.size(), .tokens = line.tokens});
  }
  return loads;
}

QueueLedger::Room QueueLedger::FindRoom(const Request& request, int64_t tokens) const {
  Room room;
  int64_t all_requests = requests_ + 1;
  int64_t all_tokens = tokens_ + tokens;
  std::optional<Limit> passed = Passed(all_requests, all_tokens);
  if (!passed) return room;

  std::vector<Load> others = Loads(request);
  const auto found = lines_.find(request.tenant);
  Line own{.weight = TenantShares::Weight(request.share), .tokens = tokens, .items = {}};
  if (found != lines_.end()) own.tokens += found->second.tokens;
  const Load own_load{.line = &own,
                      .requests = 1 + (found == lines_.end() ? 0 : found->second.items.size()),
                      .tokens = own.tokens};
  int64_t leaving_tokens = displaced_tokens_;
  while (passed) {
    const Limit limit = *passed;
    const auto most = std::max_element(
        others.begin(), others.end(),
        [limit](const Load& a, const Load& b) { return a.Of(limit) < b.Of(limit); });
    const Room refused{.refused_by = limit, .displaced = {}};
    if (most == others.end() || most->Of(limit) <= own_load.Of(limit)) return refused;
    const Item& victim = most->newest();
    leaving_tokens += victim.tokens;
    const auto leaving = static_cast<int64_t>(displaced_.size() + room.displaced.size());
    if (leaving >= max_requests_ || leaving_tokens > max_tokens_) return refused;
    room.displaced.push_back({victim.handle, limit});
    --most->requests;
    most->tokens -= victim.tokens;
    passed = Passed(--all_requests, all_tokens -= victim.tokens);
  }
  return room;
}

QueueLedger::Room QueueLedger::Enter(uint64_t handle, const Request& request, int64_t tokens) {
  Room room = FindRoom(request, tokens);
  if (room.refused_by) return room;
  displaced_.reserve(displaced_.size() + room.displaced.size());
  const double weight = TenantShares::Weight(request.share);
  const auto own = lines_.find(request.tenant);
  if (own == lines_.end()) {
    Line line{.weight = weight, .tokens = tokens, .items = {{handle, tokens}}};
    lines_.emplace(request.tenant, std::move(line));
  } else {
    own->second.items.push_back({handle, tokens});
    own->second.tokens += tokens;
    own->second.weight = weight;
  }
  ++requests_;
  tokens_ += tokens;
  // From here on nothing throws.
  for (const Victim& victim : room.displaced) {
    for (auto line = lines_.begin(); line != lines_.end(); ++line) {
      Line& of = line->second;
      if (of.items.back().handle != victim.handle) continue;
      const Item item = of.items.back();
      displaced_.push_back({item, victim.limit});
      displaced_tokens_ += item.tokens;
      --requests_;
      tokens_ -= item.tokens;
      of.tokens -= item.tokens;
      of.items.pop_back();
      if (of.items.empty()) lines_.erase(line);
      break;
    }
  }
  return room;
}

void QueueLedger::Leave(uint64_t handle) {
  for (auto line = lines_.begin(); line != lines_.end(); ++line) {
    std::vector<Item>& items = line->second.items;
    const auto item =
        std::lower_bound(items.begin(), items.end(), handle,
                         [](const Item& other, uint64_t wanted) { return other.handle < wanted; });
    if (item == items.end() || item->handle != handle) continue;
    --requests_;
    tokens_ -= item->tokens;
    line->second.tokens -= item->tokens;
    items.erase(item);
    if (items.empty()) lines_.erase(line);
    return;
  }
  const auto found =
      std::find_if(displaced_.begin(), displaced_.end(),
                   [handle](const Displaced& other) { return other.item.handle == handle; });
  if (found == displaced_.end()) return;
  displaced_tokens_ -= found->item.tokens;
  displaced_.erase(found);
}

void QueueLedger::Clear() {
  lines_.clear();
  displaced_.clear();
  requests_ = 0;
  tokens_ = 0;
  displaced_tokens_ = 0;
}

std::optional<QueueLedger::Limit> QueueLedger::DisplacedBy(uint64_t handle) const {
  for (const Displaced& displaced : displaced_) {
    if (displaced.item.handle == handle) return displaced.limit;
  }
  return std::nullopt;
}

void QueueLedger::AddTo(std::vector<TenantQueue>& tenants) const {
  for (const auto& [name, line] : lines_) {
    auto found = std::find_if(tenants.begin(), tenants.end(),
                              [&name = name](const auto& other) { return other.tenant == name; });
    if (found == tenants.end()) {
      tenants.push_back({.tenant = name, .weight = line.weight});
      found = std::prev(tenants.end());
    }
    found->waiting += static_cast<int64_t>(line.items.size());
    found->waiting_tokens += line.tokens;
  }
}

}  // namespace eta
