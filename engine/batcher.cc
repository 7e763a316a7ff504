#include "engine/batcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/error.h"

namespace eta {

using std::chrono::milliseconds;

struct Batcher::Member {
  Sequence* sequence;
  SequenceRows rows;
};

struct Batcher::Draw {
  Sequence* sequence;
  bool of_prompt;                 // the token is known, not drawn
  std::vector<TokenLogprob> top;  // storage of a prompt token's alternatives
  SampleRow sample;
};

namespace {

absl::Status DeadlineError(bool started) {
  return MakeError(absl::StatusCode::kDeadlineExceeded,
                   started ? "deadline: passed while the request was running"
                           : "deadline: passed while the request was queued",
                   {.reason = started ? "DEADLINE_DECODING" : "DEADLINE_QUEUED"});
}

}  // namespace

Batcher::Batcher(StepBatch& batch, BlockPool& pool, const BatcherOptions& options,
                 Observer* observer)
    : batch_(batch), pool_(pool), options_(options), observer_(observer) {}

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
    End(**found, MakeError(absl::StatusCode::kCancelled, "cancelled by the client",
                           {.reason = "CLIENT_CANCELLED"}));
    list->erase(found);
    return true;
  }
  return false;
}

void Batcher::FailAll(const absl::Status& status) {
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
  if (!status.ok()) sequence.Fail(status);
}

void Batcher::FreeBlocks(Sequence& sequence) {
  // The last block first: of a cached prefix the end is given away before the beginning.
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block) {
    pool_.Release(*block);
  }
  sequence.blocks.clear();
}

absl::StatusOr<StepReport> Batcher::Run(const StepPlan& plan, Clock::time_point now) {
  const std::vector<Member> members = Seat(plan, now);
  if (members.empty()) return StepReport();
  std::vector<Draw> draws;
  const absl::Status status = RunRows(members, draws);
  if (absl::IsResourceExhausted(status)) {
    GiveWay(members);
    return StepReport();
  }
  if (!status.ok()) return status;
  Settle(members, draws);
  StepReport report = Report(now, members);
  report.preemptions = static_cast<int32_t>(plan.preempted.size());
  return report;
}

// The device had no memory for the step, of which nothing counts: the latest of its sequences ends,
// so that the next step is smaller.
void Batcher::GiveWay(std::span<const Member> members) {
  const auto latest = std::max_element(
      members.begin(), members.end(),
      [](const Member& a, const Member& b) { return a.sequence->rank() < b.sequence->rank(); });
  Sequence* const sequence = latest->sequence;
  End(*sequence, MakeError(absl::StatusCode::kUnavailable, "the device ran out of memory",
                           {.reason = "DEVICE_ERROR",
                            .retry_after = PredictRetry(prefill_tokens(), prefill_rate_.value())}));
  std::erase_if(running_, [&](const auto& other) { return other.get() == sequence; });
}

void Batcher::Expire(Clock::time_point now) {
  for (auto* list : {&running_, &waiting_}) {
    std::erase_if(*list, [&](const auto& sequence) {
      if (now >= sequence->deadline()) {
        End(*sequence, DeadlineError(sequence->started()));
        return true;
      }
      if (!sequence->sink().Congested()) {
        sequence->congested_since.reset();
      } else if (!sequence->congested_since) {
        sequence->congested_since = now;
      } else if (now - *sequence->congested_since > options_.max_congestion) {
        End(*sequence, MakeError(absl::StatusCode::kResourceExhausted,
                                 "the client reads too slowly", {.reason = "SLOW_CONSUMER"}));
        return true;
      }
      return false;
    });
  }
}

StepPlan Batcher::Plan() const {
  SchedulerInput input;
  input.available_blocks = pool_.num_available();
  input.references = pool_.references();
  input.block_size = batch_.geometry().block_size;
  input.max_running = options_.max_running;
  input.max_step_tokens = options_.max_step_tokens;
  for (const auto& sequence : running_) {
    input.running.push_back({.rank = sequence->rank(),
                             .num_tokens = sequence->num_tokens(),
                             .num_computed = sequence->num_computed,
                             .blocks = sequence->blocks,
                             .paused = sequence->congested_since.has_value()});
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
  const int32_t block_size = batch_.geometry().block_size;
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
  const int32_t block_size = batch_.geometry().block_size;
  // A key stands for all of the prompt up to its block, so equal keys have equal indices.
  return !other.congested_since && shared < sequence.max_shared_blocks(block_size) &&
         static_cast<size_t>(shared) < other.prefix_keys().size() &&
         other.num_computed < (shared + 1) * block_size &&
         other.prefix_keys()[shared] == sequence.prefix_keys()[shared];
}

// Carries out the plan: frees, admits, allocates, and lays out the rows of the step.
std::vector<Batcher::Member> Batcher::Seat(const StepPlan& plan, Clock::time_point now) {
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

  std::vector<Member> members;
  int32_t row_begin = 0;
  for (const StepPlan::Work& work : plan.work) {
    Sequence& sequence = *sequences[work.index];
    Grow(sequence, work.new_blocks);
    if (work.num_rows == 0) continue;
    members.push_back({&sequence, sequence.NextRows(row_begin, work.num_rows)});
    row_begin += members.back().rows.num_rows;
  }
  return members;
}

void Batcher::Admit(Sequence& sequence, Clock::time_point now) {
  const int32_t block_size = batch_.geometry().block_size;
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

absl::Status Batcher::RunRows(std::span<const Member> members, std::vector<Draw>& draws) {
  batch_.Clear();
  std::vector<RowLogits> logits;
  for (const Member& member : members) {
    Sequence& sequence = *member.sequence;
    const SequenceRows& rows = member.rows;
    batch_.Add(rows, sequence.tokens());
    for (int32_t i = 0; i < rows.num_rows; ++i) {
      const int32_t position = rows.position + i;
      if (!sequence.WantsPromptLogprobs(position)) continue;
      const int32_t next = sequence.tokens()[static_cast<size_t>(position) + 1];
      const auto alternatives = static_cast<size_t>(*sequence.request().output.prompt_logprobs);
      draws.push_back({&sequence, true, std::vector<TokenLogprob>(alternatives), {}});
      logits.push_back({rows.row_begin + i, sequence.Force(0, next, draws.back().top)});
    }
    if (rows.position + rows.num_rows == sequence.num_tokens()) {
      draws.push_back({&sequence, false, {}, {}});
      logits.push_back({rows.row_begin + rows.num_rows - 1, sequence.Draw(0)});
    }
  }
  const absl::Status status = batch_.Run(logits);
  for (size_t i = 0; i < draws.size(); ++i) draws[i].sample = logits[i].sample;
  return status;
}

// Books what the step read, before anything moves.
void Batcher::Count(std::span<const Member> members) {
  for (const Member& member : members) {
    if (member.rows.kind != RowKind::kDecode) continue;
    for (int32_t i = 0; i < member.rows.num_rows; ++i) {
      if (!member.sequence->Counts(member.rows.position + i)) continue;
      batch_.Count(member.rows, i, member.sequence->counter());
      member.sequence->CountedRow();
    }
  }
}

// After a step that succeeded: cache lengths, shared blocks, statistics, new tokens, endings.
void Batcher::Settle(std::span<const Member> members, std::span<Draw> draws) {
  Count(members);
  const Clock::time_point now = Clock::now();
  std::vector<Sequence*> ended;
  auto draw = draws.begin();
  for (const Member& member : members) {
    Sequence& sequence = *member.sequence;
    std::vector<TokenDetail> prompt_logprobs;
    bool finite = true;
    for (; draw != draws.end() && draw->sequence == &sequence && draw->of_prompt; ++draw) {
      finite = finite && draw->sample.finite;
      prompt_logprobs.push_back(
          {draw->sample.token, draw->sample.logprob, {draw->top.begin(), draw->top.end()}});
    }
    if (!finite) prompt_logprobs.clear();
    sequence.Advance(member.rows.num_rows, std::move(prompt_logprobs));
    if (finite && member.rows.kind == RowKind::kPrefill) Publish(sequence, member.rows);
    if (draw != draws.end() && draw->sequence == &sequence) {
      const SampleRow& sample = draw->sample;
      ++draw;
      finite = finite && sample.finite;
      if (finite && sequence.Accept(sample, now)) {
        End(sequence, absl::OkStatus());
        ended.push_back(&sequence);
      }
    }
    if (!finite) {
      End(sequence,
          MakeError(absl::StatusCode::kInternal,
                    "the model's logits leave no token to draw for this request: they are NaN or "
                    "infinite",
                    {.reason = "NONFINITE_LOGITS"}));
      ended.push_back(&sequence);
    }
  }
  std::erase_if(running_, [&](const auto& sequence) {
    return std::find(ended.begin(), ended.end(), sequence.get()) != ended.end();
  });
}

// The blocks that these prompt rows filled may be shared from now on.
void Batcher::Publish(const Sequence& sequence, const SequenceRows& rows) {
  if (!options_.prefix_cache) return;
  const int32_t block_size = batch_.geometry().block_size;
  for (int32_t i = rows.position / block_size; i < sequence.num_computed / block_size; ++i) {
    pool_.Publish(sequence.blocks[i], sequence.prefix_keys()[i]);
  }
}

StepReport Batcher::Report(Clock::time_point begin, std::span<const Member> members) {
  StepReport report;
  report.duration = Clock::now() - begin;
  for (const Member& member : members) {
    (member.rows.kind == RowKind::kPrefill ? report.prefill_rows : report.decode_rows) +=
        member.rows.num_rows;
  }
  // A step that is not filled says little of how fast a long prompt goes.
  if (report.prefill_rows * 2 >= options_.max_step_tokens) {
    prefill_rate_.Measure(report.prefill_rows, report.duration, begin);
  }
  return report;
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
