#include "engine/batcher.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/batcher_step.h"
#include "engine/error.h"

namespace eta {

namespace {

using std::chrono::milliseconds;

absl::Status DeadlineError(bool started) {
  return MakeError(absl::StatusCode::kDeadlineExceeded,
                   started ? "deadline: passed while the request was running"
                           : "deadline: passed while the request was queued",
                   {.reason = started ? "DEADLINE_DECODING" : "DEADLINE_QUEUED"});
}

int64_t UnfilledTokens(const Sequence& sequence) {
  return std::max(0, sequence.prompt_len() - sequence.num_computed);
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

Batcher::Batcher(Model& model, const KvCache& cache, BlockPool& pool, const BatcherOptions& options,
                 Observer* observer)
    : geometry_(cache.geometry()),
      pool_(pool),
      options_(options),
      observer_(observer),
      step_(std::make_unique<Step>(model, cache)),
      next_(std::make_unique<Step>(model, cache)) {}

Batcher::~Batcher() = default;

void Batcher::Add(std::unique_ptr<Sequence> sequence, Clock::time_point now) {
  sequence->account = &tenants_.Join(sequence->request(), now);
  sequence->expected_prefill = sequence->num_tokens() - Describe(*sequence).num_computed;
  if (const absl::Status soon = CheckDeadline(*sequence, now); !soon.ok()) {
    End(*sequence, soon);
  } else {
    Queue(std::move(sequence));
    Shed();
  }
}

// By deficit round robin, others prefill no more than their weight gives them while its tenant does
// what is before this one, and itself.
int64_t Batcher::TokensAhead(const Sequence& sequence) const {
  std::vector<int64_t> tokens(tenants_.size());
  for (const auto& other : running_) tokens[other->account->index] += UnfilledTokens(*other);
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

// The newest of the tenant that has most for its weight, until the rest is few enough. Requests
// that ran already are not refused, and one alone is not too long.
void Batcher::Shed() {
  while (true) {
    const auto unstarted = std::count_if(waiting_.begin(), waiting_.end(),
                                         [](const auto& sequence) { return !sequence->started(); });
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
        PredictRetry(queued_tokens() + prefill_tokens(), prefill_rate_.value());
    End(**newest, too_many ? QueueFull(options_.max_waiting_requests, retry)
                           : QueueTooLong(options_.max_waiting_tokens, retry));
    waiting_.erase(newest);
  }
}

// Whether the deadline leaves time for the prompts ahead and for what of its own is not cached.
absl::Status Batcher::CheckDeadline(const Sequence& sequence, Clock::time_point now) const {
  const int64_t ahead = TokensAhead(sequence);
  const milliseconds predicted = prefill_rate_.Predict(ahead + sequence.expected_prefill, now);
  if (predicted.count() == 0 || now + predicted <= sequence.deadline()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "the deadline is shorter than the predicted wait and prefill",
                   {.reason = "DEADLINE_TOO_SHORT",
                    .metadata = {{"predicted_ms", absl::StrCat(predicted.count())}},
                    .retry_after = PredictRetry(ahead, prefill_rate_.value())});
}

void Batcher::Queue(std::unique_ptr<Sequence> sequence) {
  const auto after = std::upper_bound(
      waiting_.begin(), waiting_.end(), sequence->rank(),
      [](Clock::time_point rank, const auto& other) { return rank < other->rank(); });
  waiting_.insert(after, std::move(sequence));
}

bool Batcher::Cancel(uint64_t handle) {
  for (auto* list : {&running_, &waiting_}) {
    const auto found = std::find_if(list->begin(), list->end(),
                                    [&](const auto& other) { return other->handle() == handle; });
    if (found == list->end()) continue;
    Settle();
    End(**found, MakeError(absl::StatusCode::kCancelled, "cancelled by the client",
                           {.reason = "CLIENT_CANCELLED"}));
    list->erase(found);
    return true;
  }
  return false;
}

void Batcher::FailAll(const absl::Status& status) {
  Settle();
  for (auto* list : {&running_, &waiting_}) {
    for (auto& sequence : *list) End(*sequence, status);
    list->clear();
  }
}

void Batcher::Abandon() {
  running_.clear();
  waiting_.clear();
  step_->endings.clear();
  next_->endings.clear();
}

void Batcher::End(Sequence& sequence, const absl::Status& status) {
  FreeBlocks(sequence);
  if (observer_ != nullptr) {
    observer_->OnRequestEnd(sequence.request(), status, sequence.Outcome());
  }
  if (status.ok()) {
    sequence.Complete();
  } else {
    sequence.Fail(status);
  }
}

void Batcher::FreeBlocks(Sequence& sequence) {
  // The last block first: of a cached prefix the end is given away before the beginning.
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block) {
    pool_.Release(*block);
  }
  sequence.blocks.clear();
}

void Batcher::Expire(Clock::time_point now) {
  for (auto* list : {&running_, &waiting_}) {
    std::erase_if(*list, [&](const auto& sequence) {
      if (now >= sequence->deadline()) {
        Settle();
        End(*sequence, DeadlineError(sequence->started()));
        return true;
      }
      if (!sequence->sink().Congested()) {
        sequence->congested_since.reset();
      } else if (!sequence->congested_since) {
        sequence->congested_since = now;
      } else if (now - *sequence->congested_since > options_.max_congestion) {
        Settle();
        End(*sequence, MakeError(absl::StatusCode::kResourceExhausted,
                                 "the client reads too slowly", {.reason = "SLOW_CONSUMER"}));
        return true;
      }
      return false;
    });
  }
  tenants_.Count(running_, waiting_, now);
}

std::vector<TenantQueue> Batcher::Tenants(Clock::time_point now) {
  tenants_.Count(running_, waiting_, now);
  std::vector<TenantQueue> tenants;
  tenants.reserve(tenants_.size());
  for (const auto& account : tenants_.accounts()) tenants.push_back(account->queue);
  return tenants;
}

StepPlan Batcher::Plan() {
  StepPlan plan = PlanAhead(0);
  if (prepared_ && !IsPrepared(plan)) {
    Settle();
    plan = PlanAhead(0);
  }
  return plan;
}

StepPlan Batcher::PlanAhead(int32_t ahead) const {
  SchedulerInput input;
  input.available_blocks = pool_.num_available();
  input.references = pool_.references();
  input.block_size = geometry_.block_size;
  input.max_running = options_.max_running;
  input.max_step_tokens = options_.max_step_tokens;
  for (const auto& sequence : running_) {
    const bool paused = sequence->congested_since.has_value();
    const int32_t more = paused ? 0 : ahead;
    input.running.push_back({.rank = sequence->rank(),
                             .num_tokens = sequence->num_tokens() + more,
                             .num_computed = sequence->num_computed + more,
                             .blocks = sequence->blocks,
                             .paused = paused,
                             .tenant = sequence->account->index,
                             .kv_tokens = sequence->most_tokens()});
  }
  tenants_.Describe(input);
  // No more of a tenant can be admitted than there are seats, one more tells that its queue goes
  // on; those that are held are passed over.
  int32_t seats = options_.max_running;
  for (const auto& sequence : running_) seats -= sequence->congested_since ? 0 : 1;
  std::vector<int32_t> looked_at(tenants_.size(), 0);
  std::vector<int32_t> places;  // of input.waiting, in waiting_
  for (size_t i = 0; i < waiting_.size() && seats > 0; ++i) {
    int32_t& of_tenant = looked_at[waiting_[i]->account->index];
    if (of_tenant > seats) continue;
    WaitingSequence waiting = Describe(*waiting_[i]);
    const int32_t shared = waiting.num_computed / input.block_size;
    for (const auto& other : running_) {
      waiting.held = waiting.held || Computes(*other, *waiting_[i], shared);
    }
    for (size_t j = 0; j < places.size() && !waiting.held; ++j) {
      waiting.held = !input.waiting[j].held && Computes(*waiting_[places[j]], *waiting_[i], shared);
    }
    input.waiting.push_back(waiting);
    places.push_back(static_cast<int32_t>(i));
    of_tenant += waiting.held ? 0 : 1;
  }
  StepPlan plan = PlanStep(input);
  for (int32_t& index : plan.admitted) index = places[index];
  return plan;
}

WaitingSequence Batcher::Describe(const Sequence& sequence) const {
  const int32_t block_size = geometry_.block_size;
  int32_t shared = 0;
  int32_t shared_in_use = 0;
  if (options_.prefix_cache) {
    for (; shared < sequence.max_shared_blocks(block_size); ++shared) {
      const BlockPool::Holder holder = pool_.Find(sequence.prefix_keys()[shared]);
      if (holder == BlockPool::Holder::kNobody) break;
      if (holder == BlockPool::Holder::kUsed) ++shared_in_use;
    }
  }
  // What was reserved for the answer of one that ran already is paid for.
  const int64_t tokens = (sequence.started() ? sequence.num_tokens() : sequence.most_tokens()) -
                         int64_t{shared} * block_size;
  return {.rank = sequence.rank(),
          .blocks_needed = BlocksFor(sequence.num_tokens(), block_size) - shared_in_use,
          .num_tokens = sequence.num_tokens(),
          .num_computed = shared * block_size,
          .held = sequence.congested_since.has_value(),
          .tenant = sequence.account->index,
          .kv_tokens = sequence.most_tokens(),
          .cost = static_cast<double>(tokens)};
}

bool Batcher::Computes(const Sequence& other, const Sequence& sequence, int32_t shared) const {
  const int32_t block_size = geometry_.block_size;
  // A key stands for all of the prompt up to its block, so equal keys have equal indices.
  return !other.congested_since && shared < sequence.max_shared_blocks(block_size) &&
         static_cast<size_t>(shared) < other.prefix_keys().size() &&
         other.num_computed < (shared + 1) * block_size &&
         other.prefix_keys()[shared] == sequence.prefix_keys()[shared];
}

// Carries out the plan: frees, admits, allocates, and lays out the rows of the step.
void Batcher::Seat(const StepPlan& plan, Clock::time_point now, Step& step) {
  std::vector<Sequence*> sequences;
  for (const auto& sequence : running_) sequences.push_back(sequence.get());
  for (const int32_t index : plan.preempted) {
    FreeBlocks(*running_[index]);
    running_[index]->Preempt();
    Queue(std::move(running_[index]));
  }
  std::erase(running_, nullptr);
  tenants_.Take(plan);
  for (const int32_t index : plan.admitted) {
    Admit(*waiting_[index], now);
    sequences.push_back(waiting_[index].get());
    running_.push_back(std::move(waiting_[index]));
  }
  std::erase(waiting_, nullptr);

  step.members.clear();
  step.batch.Clear();
  step.report = {.preemptions = static_cast<int32_t>(plan.preempted.size())};
  for (const StepPlan::Work& work : plan.work) {
    Sequence& sequence = *sequences[work.index];
    Grow(sequence, work.new_blocks);
    if (work.num_rows == 0) continue;
    step.members.push_back({&sequence, sequence.NextRows(step.batch.num_rows(), work.num_rows)});
    step.batch.Add(step.members.back().rows, sequence.tokens());
  }
}

void Batcher::Admit(Sequence& sequence, Clock::time_point now) {
  const int32_t block_size = geometry_.block_size;
  if (options_.prefix_cache) {
    for (int32_t i = 0; i < sequence.max_shared_blocks(block_size); ++i) {
      const auto block = pool_.Acquire(sequence.prefix_keys()[i]);
      if (!block) break;
      sequence.blocks.push_back(*block);
    }
  }
  const auto shared = static_cast<int32_t>(sequence.blocks.size());
  Grow(sequence, BlocksFor(sequence.num_tokens(), block_size) - shared);
  sequence.num_computed = shared * block_size;
  if (!sequence.started()) sequence.Start(now, sequence.num_computed);
}

void Batcher::Grow(Sequence& sequence, int32_t num_blocks) {
  for (int32_t i = 0; i < num_blocks; ++i) sequence.blocks.push_back(pool_.Allocate().value());
}

int64_t Batcher::queued_tokens() const {
  int64_t tokens = 0;
  for (const auto& sequence : waiting_) {
    if (!sequence->started()) tokens += sequence->prompt_len();
  }
  return tokens;
}

int64_t Batcher::prefill_tokens() const {
  int64_t tokens = 0;
  for (const auto& sequence : running_) tokens += UnfilledTokens(*sequence);
  return tokens;
}

}  // namespace eta
