#include "engine/batcher.h"

#include <algorithm>
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

}  // namespace

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
  sequence->expected_prefill = sequence->num_tokens() - Describe(*sequence).num_computed;
  if (const absl::Status soon = CheckDeadline(*sequence, now); !soon.ok()) {
    End(*sequence, soon);
  } else {
    Queue(std::move(sequence));
  }
}

// Whether the deadline leaves time for the prompts ahead and for what of its own is not cached.
absl::Status Batcher::CheckDeadline(const Sequence& sequence, Clock::time_point now) const {
  int64_t ahead = prefill_tokens();
  for (const auto& other : waiting_) ahead += other->expected_prefill;
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
                             .paused = paused});
  }
  // No more can be admitted than there are seats; those that are held are passed over.
  int32_t seats = options_.max_running;
  for (const auto& sequence : running_) seats -= sequence->congested_since ? 0 : 1;
  for (size_t i = 0; i < waiting_.size() && seats > 0; ++i) {
    WaitingSequence waiting = Describe(*waiting_[i]);
    const int32_t shared = waiting.num_computed / input.block_size;
    for (const auto& other : running_) {
      waiting.held = waiting.held || Computes(*other, *waiting_[i], shared);
    }
    for (size_t j = 0; j < i && !waiting.held; ++j) {
      waiting.held = !input.waiting[j].held && Computes(*waiting_[j], *waiting_[i], shared);
    }
    input.waiting.push_back(waiting);
    seats -= waiting.held ? 0 : 1;
  }
  return PlanStep(input);
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
  return {.rank = sequence.rank(),
          .blocks_needed = BlocksFor(sequence.num_tokens(), block_size) - shared_in_use,
          .num_tokens = sequence.num_tokens(),
          .num_computed = shared * block_size,
          .held = sequence.congested_since.has_value()};
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
  for (const auto& sequence : running_) {
    tokens += std::max(0, sequence->prompt_len() - sequence->num_computed);
  }
  return tokens;
}

}  // namespace eta
