#include "engine/batching/request_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/batching/scheduler.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

// As the scheduler counts it, by what is known when a request comes.
double SlotCost(const Sequence& sequence) {
  return static_cast<double>(sequence.started() ? sequence.num_tokens()
                                                : sequence.expected_prefill +
                                                      sequence.request().stopping.max_tokens);
}

auto HasHandle(uint64_t handle) {
  return [handle](const auto& sequence) { return sequence->handle() == handle; };
}

}  // namespace

void RequestQueue::Push(std::unique_ptr<Sequence> sequence) {
  const auto after = std::upper_bound(
      waiting_.begin(), waiting_.end(), sequence->rank(),
      [](Clock::time_point rank, const auto& other) { return rank < other->rank(); });
  waiting_.insert(after, std::move(sequence));
}

const Sequence* RequestQueue::Find(uint64_t handle) const {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), HasHandle(handle));
  return found == waiting_.end() ? nullptr : found->get();
}

std::unique_ptr<Sequence> RequestQueue::Remove(uint64_t handle) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), HasHandle(handle));
  if (found == waiting_.end()) return nullptr;
  std::unique_ptr<Sequence> sequence = std::move(*found);
  waiting_.erase(found);
  return sequence;
}

std::vector<std::unique_ptr<Sequence>> RequestQueue::Remove(std::span<const int32_t> indices) {
  std::vector<std::unique_ptr<Sequence>> removed;
  removed.reserve(indices.size());
  for (const int32_t index : indices) removed.push_back(std::move(waiting_[index]));
  std::erase(waiting_, nullptr);
  return removed;
}

int32_t RequestQueue::num_preempted() const {
  return static_cast<int32_t>(std::count_if(
      waiting_.begin(), waiting_.end(), [](const auto& sequence) { return sequence->started(); }));
}

int64_t RequestQueue::unstarted_tokens() const {
  int64_t tokens = 0;
  for (const auto& sequence : waiting_) {
    if (!sequence->started()) tokens += sequence->prompt_len();
  }
  return tokens;
}

// In deficit round robin, other tenants prefill no more than their weight gives them during the
// rounds that the newcomer's tenant needs for its earlier requests and for the newcomer.
int64_t RequestQueue::TokensAhead(const Sequence& newcomer, Sequences running) const {
  std::vector<int64_t> tokens(tenants_.size());
  for (const auto& other : running) tokens[other->account->index] += other->prompt_left();
  const TenantAccount& own = *newcomer.account;
  for (const auto& other : waiting_) {
    const bool before = other->account != &own || other->rank() <= newcomer.rank();
    if (before) tokens[other->account->index] += other->expected_prefill;
  }
  const auto rounds = static_cast<double>(tokens[own.index] + newcomer.expected_prefill);
  int64_t ahead = 0;
  for (const auto& account : tenants_.accounts()) {
    const int64_t has = tokens[account->index];
    const double may = (rounds + kQuantumTokens) * account->share.weight / own.share.weight;
    ahead +=
        account.get() == &own || static_cast<double>(has) < may ? has : static_cast<int64_t>(may);
  }
  return ahead;
}

// The same in what slots cost.
int64_t RequestQueue::RequestsAhead(const Sequence& newcomer) const {
  const TenantAccount& own = *newcomer.account;
  int64_t ahead = 0;
  double rounds = SlotCost(newcomer) + kQuantumTokens;
  for (const auto& other : waiting_) {
    if (other->account != &own || other->rank() > newcomer.rank()) continue;
    rounds += SlotCost(*other);
    ++ahead;
  }
  std::vector<double> left;  // by tenant: what it may still be given in these rounds
  for (const auto& account : tenants_.accounts()) {
    left.push_back(rounds * account->share.weight / own.share.weight);
  }
  for (const auto& other : waiting_) {
    if (other->account == &own) continue;
    double& may = left[other->account->index];
    may -= SlotCost(*other);
    if (may >= 0.0) ++ahead;
  }
  return ahead;
}

// The wait for a slot and the wait for the prompts ahead pass together, so the longer one counts.
absl::Status RequestQueue::CheckDeadline(const Sequence& newcomer, Sequences running,
                                         int32_t slots_taken, Clock::time_point now) const {
  const milliseconds wait =
      PredictedWait(RequestsAhead(newcomer), TokensAhead(newcomer, running), slots_taken, now);
  const milliseconds predicted = wait + prefill_throughput_.Predict(newcomer.expected_prefill, now);
  if (predicted.count() == 0 || now + predicted <= newcomer.deadline()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "the deadline is shorter than the predicted wait and prefill",
                   {.reason = "DEADLINE_TOO_SHORT",
                    .metadata = {{"predicted_ms", absl::StrCat(predicted.count())}},
                    .retry_after = RetryHint(wait)});
}

milliseconds RequestQueue::PredictedWait(int64_t requests_ahead, int64_t tokens_ahead,
                                         int32_t slots_taken, Clock::time_point now) const {
  return std::max(slot_rate_.Predict(requests_ahead, slots_taken, now),
                  prefill_throughput_.Predict(tokens_ahead, now));
}

}  // namespace eta
