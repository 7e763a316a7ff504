#include "engine/batching/batcher.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

// After one with drafts for which the device had no memory.
constexpr int32_t kStepsWithoutDrafts = 256;

absl::Status BlocksMiscounted() {
  return MakeError(absl::StatusCode::kInternal,
                   "the KV cache has fewer blocks than were counted for this request",
                   {.reason = "INTERNAL_ERROR"});
}

absl::Status NothingToCompute() {
  return MakeError(absl::StatusCode::kInternal, "the request has no token left to compute",
                   {.reason = "INTERNAL_ERROR"});
}

}  // namespace

Batcher::Batcher(Model& model, const KvCache& cache, BlockPool& pool, const BatcherOptions& options,
                 Observer* observer)
    : geometry_(cache.geometry()),
      pool_(pool),
      options_(options),
      observer_(observer),
      queue_(tenants_),
      planner_(options_, cache, pool_, tenants_),
      pipeline_(model, cache, pool_, options_, observer) {}

void Batcher::Add(std::unique_ptr<Sequence> sequence, Clock::time_point now) {
  sequence->account = &tenants_.Join(sequence->request());
  sequence->expected_prefill = sequence->num_tokens() - planner_.Describe(*sequence).num_computed;
  const absl::Status in_time = queue_.CheckDeadline(*sequence, running_, slots_taken(), now);
  if (in_time.ok()) return queue_.Push(std::move(sequence));
  // A prepared step has no part in a request that never ran, and may stay.
  pipeline_.Complete();
  End(*sequence, in_time);
}

void Batcher::Refuse(uint64_t handle, const absl::Status& status) {
  const Sequence* const found = queue_.Find(handle);
  if (found == nullptr || found->started()) return;
  pipeline_.Complete();
  End(*queue_.Remove(handle), status);
}

bool Batcher::Cancel(uint64_t handle) {
  std::unique_ptr<Sequence> cancelled = queue_.Remove(handle);
  const auto running =
      std::find_if(running_.begin(), running_.end(),
                   [handle](const auto& sequence) { return sequence->handle() == handle; });
  if (cancelled == nullptr && running == running_.end()) return false;
  Settle();
  if (cancelled == nullptr) {
    cancelled = std::move(*running);
    running_.erase(running);
  }
  End(*cancelled, MakeError(absl::StatusCode::kCancelled, "cancelled by the client",
                            {.reason = "CLIENT_CANCELLED"}));
  return true;
}

void Batcher::FailAll(const absl::Status& status) {
  Settle();
  for (const auto& sequence : running_) End(*sequence, status);
  running_.clear();
  for (const auto& sequence : queue_.sequences()) End(*sequence, status);
  queue_.Clear();
}

void Batcher::Lose(const absl::Status& status, const absl::Status& refusal) {
  Settle();
  for (const auto& sequence : running_) End(*sequence, status);
  running_.clear();
  for (const auto& sequence : queue_.sequences()) {
    if (sequence->started()) {
      End(*sequence, status);
    } else if (sequence->GiveBack()) {
      left_.push_back(sequence->handle());
    } else {
      End(*sequence, refusal);
    }
  }
  queue_.Clear();
}

void Batcher::Abandon() {
  running_.clear();
  queue_.Clear();
  pipeline_.Abandon();
}

void Batcher::End(Sequence& sequence, const absl::Status& status) {
  sequence.blocks.Release(pool_);
  if (!sequence.started()) left_.push_back(sequence.handle());
  sequence.End(status, observer_);
}

void Batcher::Expire(Clock::time_point now) {
  const auto expired = [&](const std::unique_ptr<Sequence>& sequence) {
    if (now >= sequence->deadline()) {
      Settle();
      End(*sequence, DeadlinePassed(sequence->started()));
      return true;
    }
    if (!sequence->sink().Congested()) {
      sequence->congested_since.reset();
    } else if (!sequence->congested_since) {
      sequence->congested_since = now;
    } else if (now - *sequence->congested_since > options_.max_congestion) {
      Settle();
      End(*sequence, MakeError(absl::StatusCode::kResourceExhausted, "the client reads too slowly",
                               {.reason = "SLOW_CONSUMER"}));
      return true;
    }
    return false;
  };
  std::erase_if(running_, expired);
  queue_.RemoveIf(expired);
  for (const auto& sequence : running_) {
    if (sequence->congested_since && !sequence->paused_since) sequence->paused_since = now;
  }
  expired_at_ = now;
  tenants_.BeginStep();
  tenants_.Count(running_, queue_.sequences(), now);
  Resume();
}

// The earliest first, before anybody who waits, and as far as its tenant may have slots: readers
// that all come back at once take none from others.
void Batcher::Resume() {
  int32_t slots = options_.max_running - slots_taken();
  std::vector<Sequence*> ready;
  for (const auto& sequence : running_) {
    if (sequence->paused_since && !sequence->congested_since) ready.push_back(sequence.get());
  }
  if (ready.empty()) return;
  std::stable_sort(ready.begin(), ready.end(),
                   [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  const std::vector<int32_t> most = tenants_.MaxSlots(options_.max_running);
  for (Sequence* sequence : ready) {
    TenantQueue& of_tenant = sequence->account->queue;
    const bool may = of_tenant.running - of_tenant.paused < most[sequence->account->index];
    if (slots <= 0 || !may) continue;
    sequence->paused_since.reset();
    --of_tenant.paused;
    --slots;
  }
}

StepPlan Batcher::Plan() {
  Draft();
  StepPlan plan = PlanAhead(0);
  if (pipeline_.prepared() && !pipeline_.IsPrepared(plan, running_)) {
    Settle();
    plan = PlanAhead(0);
  }
  return plan;
}

// Sequences make drafts by rows in rounds: all of them in the same steps, and one step verifies
// what all have made. A step that does both would be as long as one that verifies, and rows of a
// sequence that stand beside rows with sparser reads have no blocks read once for all of them.
void Batcher::Draft() {
  int32_t decoding = 0;
  int32_t left = 0;  // of the round
  bool verifies = false;
  for (const auto& sequence : running_) {
    if (sequence->paused_since) continue;
    decoding += sequence->prompt_left() == 0 ? 1 : 0;
    left = std::max(left, sequence->NumDraftsToMake());
    verifies = verifies || sequence->HasMadeDrafts();
  }
  const bool begins = left == 0 && !verifies;
  const int32_t most_made = begins ? std::numeric_limits<int32_t>::max() : left;
  for (const auto& sequence : running_) {
    if (steps_without_drafts_ > 0) {
      sequence->DropDrafts();
    } else if (!sequence->paused_since) {
      sequence->Draft(decoding, pipeline_.read_cost(), most_made);
      left = std::max(left, sequence->NumDraftsToMake());
    }
  }
  if (!begins) return;
  for (const auto& sequence : running_) {
    if (!sequence->paused_since) sequence->MakeAsManyDrafts(left);
  }
}

StepPlan Batcher::PlanAhead(int32_t ahead) const {
  return planner_.Plan(running_, queue_.sequences(), slots_taken(), ahead, expired_at_);
}

absl::StatusOr<double> Batcher::Run(const StepPlan& plan, Clock::time_point now) {
  const int32_t taken = slots_taken();
  if (!pipeline_.prepared()) {
    Settle();
    LayOut(plan, now);
  }
  const bool full = slots_taken() >= options_.max_running || plan.short_of_blocks;
  queue_.MeasureSlots(taken, slots_taken(), full, now);
  const auto preemptions = static_cast<int32_t>(plan.preempted.size());
  if (pipeline_.next_empty()) {
    if (preemptions > 0) Report({.preemptions = preemptions});
    return 0.0;
  }
  RETURN_IF_ERROR(pipeline_.Forward());
  pipeline_.Launch();
  PrepareNext();
  const absl::Status finished = pipeline_.Finish();
  if (finished.ok()) {
    Commit(now);
  } else {
    pipeline_.Forget();
  }
  if (!pipeline_.prepared()) Settle();
  if (absl::IsResourceExhausted(finished)) {
    if (preemptions > 0) Report({.preemptions = preemptions});
    if (pipeline_.report().drafts.drafted > 0) {
      steps_without_drafts_ = kStepsWithoutDrafts;
    } else {
      GiveWay();
    }
    return 0.0;
  }
  if (!finished.ok()) return finished;
  return std::chrono::duration<double>(pipeline_.report().duration).count();
}

void Batcher::LayOut(const StepPlan& plan, Clock::time_point now) {
  std::vector<Sequence*> sequences;
  for (const auto& sequence : running_) sequences.push_back(sequence.get());
  // The admitted ones leave the queue first: their indices are those from before anybody is queued
  // again.
  std::vector<std::unique_ptr<Sequence>> admitted = queue_.Remove(plan.admitted);
  for (const int32_t index : plan.preempted) {
    running_[index]->blocks.Release(pool_);
    running_[index]->Preempt();
    running_[index]->paused_since.reset();
    queue_.Push(std::move(running_[index]));
  }
  std::erase(running_, nullptr);
  tenants_.Commit(plan);
  for (std::unique_ptr<Sequence>& sequence : admitted) {
    const absl::Status in = Admit(*sequence, now);
    if (in.ok()) {
      sequences.push_back(sequence.get());
      running_.push_back(std::move(sequence));
    } else {
      sequences.push_back(nullptr);
      End(*sequence, in);
    }
  }

  pipeline_.Begin(static_cast<int32_t>(plan.preempted.size()));
  for (const StepPlan::Work& work : plan.work) {
    Sequence*& sequence = sequences[work.index];
    if (sequence == nullptr) continue;
    const int32_t behind = work.makes_draft ? sequence->num_drafts() : 0;
    const int32_t rows_end = sequence->num_computed + std::max(1, work.num_rows) + behind;
    const int32_t tokens = std::max(sequence->num_tokens(), rows_end);
    sequence->blocks.ShrinkTo(pool_, tokens);  // drafts were made, and are not verified
    if (sequence->blocks.Grow(pool_, tokens, rows_end)) continue;
    End(*sequence, BlocksMiscounted());
    std::erase_if(running_, [&](const auto& other) { return other.get() == sequence; });
    sequence = nullptr;
  }
  for (const bool of_prompt : {false, true}) {  // decode rows come first (Model::Forward)
    for (const StepPlan::Work& work : plan.work) {
      Sequence* const sequence = sequences[work.index];
      if (sequence == nullptr || work.num_rows == 0) continue;
      if ((sequence->prompt_left() > 0) != of_prompt) continue;
      if (work.makes_draft) {
        pipeline_.AddDraft(*sequence);
      } else {
        pipeline_.Add(*sequence, work.num_rows);
      }
    }
  }
}

absl::Status Batcher::Admit(Sequence& sequence, Clock::time_point now) {
  const int32_t block_size = geometry_.block_size;
  if (options_.prefix_cache) {
    const auto sharable = static_cast<size_t>(sequence.max_shared_blocks(block_size));
    sequence.num_computed =
        sequence.blocks.Share(pool_, sequence.prefix_keys().first(sharable)) * block_size;
  }
  if (!sequence.blocks.Grow(pool_, sequence.num_tokens(), sequence.num_computed)) {
    return BlocksMiscounted();
  }
  if (sequence.num_computed >= sequence.num_tokens()) return NothingToCompute();
  if (sequence.started()) return absl::OkStatus();
  left_.push_back(sequence.handle());
  sequence.Start(now, sequence.num_computed);
  return absl::OkStatus();
}

// While the current step runs: prepares the step that follows if nobody joins, leaves or pauses.
// Only free blocks are allocated for it: a cached prefix must not go for a step that may not come.
void Batcher::PrepareNext() {
  if (!pipeline_.CanPrepare()) return;
  size_t going_on = 0;
  for (const auto& sequence : running_) {
    if (sequence->paused_since) continue;
    if (sequence->AtLastToken()) return;
    ++going_on;
  }
  if (going_on != pipeline_.num_sequences()) return;
  const StepPlan plan = PlanAhead(1);
  int32_t new_blocks = 0;
  bool all_decode = plan.preempted.empty() && plan.admitted.empty();
  for (const StepPlan::Work& work : plan.work) {
    new_blocks += work.new_blocks;
    all_decode = all_decode && work.num_rows == 1;
  }
  if (!all_decode || plan.work.size() != going_on || new_blocks > pool_.num_free()) return;

  std::vector<BlockTables::Lengths> lengths;
  for (const StepPlan::Work& work : plan.work) {
    Sequence& sequence = *running_[work.index];
    lengths.push_back(sequence.blocks.lengths());
    // A token more, and the row after the one that is computed now.
    if (sequence.blocks.Grow(pool_, sequence.num_tokens() + 1, sequence.num_computed + 2)) continue;
    for (size_t i = lengths.size() - 1; i-- > 0;) {
      running_[plan.work[i].index]->blocks.ShrinkTo(pool_, lengths[i]);
    }
    return;
  }
  pipeline_.Begin();
  for (size_t i = 0; i < plan.work.size(); ++i) {
    pipeline_.AddAhead(*running_[plan.work[i].index], lengths[i]);
  }
  pipeline_.Prepare();
}

void Batcher::Commit(Clock::time_point begin) {
  if (steps_without_drafts_ > 0) --steps_without_drafts_;
  for (StepPipeline::Ended& ended : pipeline_.Commit()) {
    const auto found = std::find_if(running_.begin(), running_.end(), [&](const auto& other) {
      return other.get() == ended.sequence;
    });
    (*found)->blocks.Release(pool_);
    pipeline_.Retire(std::move(*found), std::move(ended.status));
    running_.erase(found);
  }
  StepReport& report = pipeline_.report();
  FillGauges(report);
  report.duration = Clock::now() - begin;
  // A step that is not filled says little of how fast a long prompt goes.
  if (report.prefill_rows * 2 >= options_.max_step_tokens) {
    queue_.MeasurePrefill(report.prefill_rows, report.duration, begin);
  }
}

// The device had no memory for the step, of which nothing counts: the latest of its sequences ends,
// so that the next step is smaller.
void Batcher::GiveWay() {
  Sequence& latest = pipeline_.latest();
  End(latest, MakeError(absl::StatusCode::kUnavailable, "the device ran out of memory",
                        {.reason = "DEVICE_ERROR",
                         .retry_after = queue_.wait_estimate().RetryAfter(prefill_tokens(), 0)}));
  std::erase_if(running_, [&](const auto& other) { return other.get() == &latest; });
}

void Batcher::Report(StepReport report) const {
  if (observer_ == nullptr) return;
  FillGauges(report);
  observer_->OnStep(report);
}

void Batcher::FillGauges(StepReport& report) const {
  report.sequences_running = num_running();
  report.requests_waiting = queue_.size();
  report.blocks_used = pool_.num_used();
  report.blocks_cached = pool_.num_cached();
  report.blocks_free = pool_.num_free();
}

int32_t Batcher::slots_taken() const {
  return static_cast<int32_t>(
      std::count_if(running_.begin(), running_.end(),
                    [](const auto& sequence) { return !sequence->paused_since; }));
}

int64_t Batcher::prefill_tokens() const {
  int64_t tokens = 0;
  for (const auto& sequence : running_) tokens += sequence->prompt_left();
  return tokens;
}

std::vector<TenantQueue> Batcher::Tenants(Clock::time_point now) {
  tenants_.Count(running_, queue_.sequences(), now);
  std::vector<TenantQueue> tenants;
  tenants.reserve(tenants_.size());
  for (const auto& account : tenants_.accounts()) {
    tenants.push_back(account->queue);
    tenants.back().waiting = 0;
    tenants.back().waiting_tokens = 0;
  }
  for (const auto& sequence : queue_.sequences()) {
    if (sequence->started()) ++tenants[sequence->account->index].waiting;
  }
  return tenants;
}

}  // namespace eta
