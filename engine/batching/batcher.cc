#include "engine/batching/batcher.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/batching/batcher_step.h"

namespace eta {

namespace {

// How long a reader may be behind while a request waits for its blocks: what it has to catch up on
// is computed again.
constexpr std::chrono::seconds kPatience{1};

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
        End(*sequence, DeadlinePassed(sequence->started()));
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
  for (const auto& sequence : running_) {
    if (sequence->congested_since && !sequence->paused_since) sequence->paused_since = now;
  }
  expired_at_ = now;
  tenants_.BeginStep();
  tenants_.Count(running_, waiting_, now);
  Resume();
}

// The earliest first, before anybody who waits, and as far as its tenant may have slots: readers
// that all come back at once take none from others.
void Batcher::Resume() {
  int32_t slots = options_.max_running - SlotsTaken();
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
    const bool paused = sequence->paused_since.has_value();
    const int32_t more = paused ? 0 : ahead;
    input.running.push_back(
        {.rank = sequence->rank(),
         .num_tokens = sequence->num_tokens() + more,
         .num_computed = sequence->num_computed + more,
         .blocks = sequence->blocks,
         .paused = paused,
         .tenant = sequence->account->index,
         .kv_tokens = sequence->most_tokens(),
         .yields = paused && expired_at_ - *sequence->paused_since >= kPatience});
  }
  tenants_.Describe(input);
  // No more of a tenant can be admitted than there are slots, one more tells that its queue goes
  // on; those that are held are passed over.
  const int32_t slots = options_.max_running - SlotsTaken();
  std::vector<int32_t> looked_at(tenants_.size(), 0);
  std::vector<int32_t> places;  // of input.waiting, in waiting_
  for (size_t i = 0; i < waiting_.size() && slots > 0; ++i) {
    int32_t& of_tenant = looked_at[waiting_[i]->account->index];
    if (of_tenant > slots) continue;
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
  BlockPool::Prefix shared;
  if (options_.prefix_cache) {
    const auto sharable = static_cast<size_t>(sequence.max_shared_blocks(block_size));
    shared = pool_.FindPrefix(sequence.prefix_keys().first(sharable));
  }
  // What was reserved for the answer of one that ran already is paid for.
  const int64_t tokens = (sequence.started() ? sequence.num_tokens() : sequence.most_tokens()) -
                         int64_t{shared.num_blocks} * block_size;
  return {.rank = sequence.rank(),
          .blocks_needed = BlocksFor(sequence.num_tokens(), block_size) - shared.num_held,
          .num_tokens = sequence.num_tokens(),
          .num_computed = shared.num_blocks * block_size,
          .held = sequence.congested_since.has_value(),
          .tenant = sequence.account->index,
          .kv_tokens = sequence.most_tokens(),
          .cost = static_cast<double>(tokens),
          .blocks_shared = shared.num_held};
}

bool Batcher::Computes(const Sequence& other, const Sequence& sequence, int32_t shared) const {
  const int32_t block_size = geometry_.block_size;
  // A key stands for all of the prompt up to its block, so equal keys have equal indices.
  return !other.paused_since && shared < sequence.max_shared_blocks(block_size) &&
         static_cast<size_t>(shared) < other.prefix_keys().size() &&
         other.num_computed < (shared + 1) * block_size &&
         other.prefix_keys()[shared] == sequence.prefix_keys()[shared];
}

// Carries out the plan: frees, admits, allocates, and lays out the rows of the step.
void Batcher::Slot(const StepPlan& plan, Clock::time_point now, Step& step) {
  std::vector<Sequence*> sequences;
  for (const auto& sequence : running_) sequences.push_back(sequence.get());
  for (const int32_t index : plan.preempted) {
    FreeBlocks(*running_[index]);
    running_[index]->Preempt();
    running_[index]->paused_since.reset();
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

int64_t Batcher::prefill_tokens() const {
  int64_t tokens = 0;
  for (const auto& sequence : running_) tokens += sequence->prompt_left();
  return tokens;
}

int32_t Batcher::SlotsTaken() const {
  return static_cast<int32_t>(
      std::count_if(running_.begin(), running_.end(),
                    [](const auto& sequence) { return !sequence->paused_since; }));
}

}  // namespace eta
