// The batcher's queue: who may wait in it, who is refused, and what is told to those.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/batching/batcher_step.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

// As the scheduler counts it, by what is known when a request comes.
double SlotCost(const Sequence& sequence) {
  return static_cast<double>(sequence.started() ? sequence.num_tokens()
                                                : sequence.expected_prefill +
                                                      sequence.request().stopping.max_tokens);
}

}  // namespace

absl::Status QueueFull(int32_t max_requests, milliseconds retry) {
  return MakeError(absl::StatusCode::kResourceExhausted, "the queue is full",
                   {.reason = "QUEUE_FULL",
                    .metadata = {{"max_waiting_requests", absl::StrCat(max_requests)}},
                    .retry_after = retry});
}

absl::Status QueueTooLong(int64_t max_tokens, milliseconds retry) {
  return MakeError(absl::StatusCode::kResourceExhausted, "the queue holds too many prompt tokens",
                   {.reason = "TOKEN_BUDGET",
                    .metadata = {{"max_waiting_tokens", absl::StrCat(max_tokens)}},
                    .retry_after = retry});
}

void Batcher::Add(std::unique_ptr<Sequence> sequence, Clock::time_point now) {
  sequence->account = &tenants_.Join(sequence->request());
  sequence->expected_prefill = sequence->num_tokens() - Describe(*sequence).num_computed;
  if (const absl::Status soon = CheckDeadline(*sequence, now); !soon.ok()) {
    Refuse(*sequence, soon);
  } else {
    Queue(std::move(sequence));
    Shed();
  }
}

// By deficit round robin, others prefill no more than their weight gives them while its tenant does
// what is before this one, and itself.
int64_t Batcher::TokensAhead(const Sequence& sequence) const {
  std::vector<int64_t> tokens(tenants_.size());
  for (const auto& other : running_) tokens[other->account->index] += other->prompt_left();
  const TenantAccount& own = *sequence.account;
  for (const auto& other : waiting_) {
    const bool before = other->account != &own || other->rank() <= sequence.rank();
    if (before) tokens[other->account->index] += other->expected_prefill;
  }
  const auto turn = static_cast<double>(tokens[own.index] + sequence.expected_prefill);
  int64_t ahead = 0;
  for (const auto& account : tenants_.accounts()) {
    const int64_t has = tokens[account->index];
    const double may = (turn + kTurnTokens) * account->share.weight / own.share.weight;
    ahead +=
        account.get() == &own || static_cast<double>(has) < may ? has : static_cast<int64_t>(may);
  }
  return ahead;
}

// Likewise by deficit round robin, in what slots cost.
int64_t Batcher::RequestsAhead(const Sequence& sequence) const {
  const TenantAccount& own = *sequence.account;
  int64_t ahead = 0;
  double turn = SlotCost(sequence) + kTurnTokens;
  for (const auto& other : waiting_) {
    if (other->account != &own || other->rank() > sequence.rank()) continue;
    turn += SlotCost(*other);
    ++ahead;
  }
  std::vector<double> left;  // by tenant: what it may still take in that time
  for (const auto& account : tenants_.accounts()) {
    left.push_back(turn * account->share.weight / own.share.weight);
  }
  for (const auto& other : waiting_) {
    if (other->account == &own) continue;
    double& may = left[other->account->index];
    may -= SlotCost(*other);
    if (may >= 0.0) ++ahead;
  }
  return ahead;
}

// Whether the deadline leaves time for what goes before it, which is the longer of two waits that
// pass together, for a slot and for the prompts ahead, and for what of its own is not cached.
absl::Status Batcher::CheckDeadline(const Sequence& sequence, Clock::time_point now) const {
  const milliseconds wait = PredictedWait(RequestsAhead(sequence), TokensAhead(sequence), now);
  const milliseconds predicted = wait + prefill_throughput_.Predict(sequence.expected_prefill, now);
  if (predicted.count() == 0 || now + predicted <= sequence.deadline()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "the deadline is shorter than the predicted wait and prefill",
                   {.reason = "DEADLINE_TOO_SHORT",
                    .metadata = {{"predicted_ms", absl::StrCat(predicted.count())}},
                    .retry_after = RetryHint(wait)});
}

// The newest of the tenant that has most for its weight, until the rest is few enough. Requests
// that ran already are not refused, and one alone is not too long.
void Batcher::Shed() {
  while (true) {
    const int32_t unstarted = num_waiting() - num_preempted();
    const bool too_many = unstarted > options_.max_waiting_requests;
    const bool too_long = unstarted > 1 && queued_tokens() > options_.max_waiting_tokens;
    if (unstarted == 0 || (!too_many && !too_long)) return;
    std::vector<double> load(tenants_.size());
    for (const auto& sequence : waiting_) {
      if (sequence->started()) continue;
      load[sequence->account->index] +=
          (too_many ? 1.0 : sequence->prompt_len()) / sequence->account->share.weight;
    }
    const auto newest =
        std::max_element(waiting_.begin(), waiting_.end(), [&](const auto& a, const auto& b) {
          const auto key = [&](const Sequence& sequence) {
            return std::tuple(!sequence.started(), load[sequence.account->index],
                              sequence.arrival());
          };
          return key(*a) < key(*b);
        });
    const milliseconds retry =
        wait_estimate().RetryAfter(queued_tokens() + prefill_tokens(), num_waiting());
    Refuse(**newest, too_many ? QueueFull(options_.max_waiting_requests, retry)
                              : QueueTooLong(options_.max_waiting_tokens, retry));
    waiting_.erase(newest);
  }
}

// A prepared step has no part in one that never ran, and may stay.
void Batcher::Refuse(Sequence& sequence, const absl::Status& status) {
  Complete(*step_);
  End(sequence, status);
}

void Batcher::Queue(std::unique_ptr<Sequence> sequence) {
  const auto after = std::upper_bound(
      waiting_.begin(), waiting_.end(), sequence->rank(),
      [](Clock::time_point rank, const auto& other) { return rank < other->rank(); });
  waiting_.insert(after, std::move(sequence));
}

milliseconds Batcher::PredictedWait(int64_t requests_ahead, int64_t tokens_ahead,
                                    Clock::time_point now) const {
  return std::max(slot_rate_.Predict(requests_ahead, SlotsTaken(), now),
                  prefill_throughput_.Predict(tokens_ahead, now));
}

int32_t Batcher::num_preempted() const {
  return static_cast<int32_t>(std::count_if(
      waiting_.begin(), waiting_.end(), [](const auto& sequence) { return sequence->started(); }));
}

int64_t Batcher::queued_tokens() const {
  int64_t tokens = 0;
  for (const auto& sequence : waiting_) {
    if (!sequence->started()) tokens += sequence->prompt_len();
  }
  return tokens;
}

}  // namespace eta
