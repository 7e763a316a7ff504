// The batcher's steps: run, prepared, taken, completed.
#include "engine/batching/batcher_step.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/error.h"
#include "kernels/failpoint.h"

namespace eta {

absl::StatusOr<double> Batcher::Run(const StepPlan& plan, Clock::time_point now) {
  const int32_t taken = SlotsTaken();
  if (prepared_) {
    for (const Member& member : next_->members) {
      next_->batch.SetToken(member.rows.row_begin, member.sequence->tokens().back());
    }
  } else {
    Settle();
    Slot(plan, now, *next_);
  }
  const bool full = SlotsTaken() >= options_.max_running || plan.short_of_blocks;
  slot_rate_.Measure(taken, SlotsTaken(), full, now);
  if (!prepared_) {
    if (next_->members.empty()) {
      if (next_->report.preemptions > 0) Report(next_->report);
      return 0.0;
    }
    if (absl::Status noted = next_->batch.Forward(); !noted.ok()) return noted;
  }
  prepared_ = false;
  std::swap(step_, next_);
  DrawTokens(*step_);
  step_->batch.Launch();
  Complete(*next_);
  Prepare();
  const absl::Status finished = step_->batch.Finish();
  if (finished.ok()) Take(*step_, now);
  if (!finished.ok()) Forget();
  if (!prepared_) Settle();
  if (absl::IsResourceExhausted(finished)) {
    if (step_->report.preemptions > 0) Report(step_->report);
    GiveWay(step_->members);
    return 0.0;
  }
  if (!finished.ok()) return finished;
  return std::chrono::duration<double>(step_->report.duration).count();
}

void Batcher::Settle() {
  Forget();
  Complete(*step_);
}

void Batcher::Forget() {
  if (!std::exchange(prepared_, false)) return;
  next_->batch.Discard();
  // The last block taken goes back first, so that the pool is what it was.
  for (auto member = next_->members.rbegin(); member != next_->members.rend(); ++member) {
    for (; member->early_blocks > 0; --member->early_blocks) {
      pool_.Release(member->sequence->blocks.back());
      member->sequence->blocks.pop_back();
    }
  }
}

bool Batcher::IsPrepared(const StepPlan& plan) const {
  return plan.preempted.empty() && plan.admitted.empty() &&
         std::equal(plan.work.begin(), plan.work.end(), next_->members.begin(),
                    next_->members.end(), [&](const StepPlan::Work& work, const Member& member) {
                      return running_[work.index].get() == member.sequence && work.num_rows == 1 &&
                             work.new_blocks == 0;
                    });
}

// While `step_` runs: notes the step that follows if nobody joins, leaves or pauses. Only blocks
// that are free are taken for it; a prefix that is cached must not go for a step that may not come.
void Batcher::Prepare() {
  if (!step_->batch.defers() || !step_->only_decodes()) return;
  size_t going_on = 0;
  for (const auto& sequence : running_) {
    if (sequence->paused_since) continue;
    if (sequence->AtLastToken()) return;
    ++going_on;
  }
  if (going_on != step_->members.size()) return;
  const StepPlan plan = PlanAhead(1);
  int32_t new_blocks = 0;
  bool all_decode = plan.preempted.empty() && plan.admitted.empty();
  for (const StepPlan::Work& work : plan.work) {
    new_blocks += work.new_blocks;
    all_decode = all_decode && work.num_rows == 1;
  }
  if (!all_decode || plan.work.size() != going_on || new_blocks > pool_.num_free()) return;

  next_->members.clear();
  next_->batch.Clear();
  next_->report = {};
  for (const StepPlan::Work& work : plan.work) {
    Sequence& sequence = *running_[work.index];
    Grow(sequence, work.new_blocks);
    next_->members.push_back(
        {&sequence, sequence.RowAhead(next_->batch.num_rows()), work.new_blocks});
    next_->batch.AddUnknown(next_->members.back().rows);
  }
  prepared_ = next_->batch.Forward().ok();
}

void Batcher::DrawTokens(Step& step) {
  step.draws.clear();
  step.logits.clear();
  for (const Member& member : step.members) {
    Sequence& sequence = *member.sequence;
    const SequenceRows& rows = member.rows;
    for (int32_t i = 0; i < rows.num_rows; ++i) {
      const int32_t position = rows.position + i;
      if (!sequence.WantsPromptLogprobs(position)) continue;
      const int32_t next = sequence.tokens()[static_cast<size_t>(position) + 1];
      const auto alternatives = static_cast<size_t>(*sequence.request().output.prompt_logprobs);
      step.draws.push_back({&sequence, true, std::vector<TokenLogprob>(alternatives)});
      step.logits.push_back({rows.row_begin + i, sequence.Force(0, next, step.draws.back().top)});
    }
    if (rows.position + rows.num_rows == sequence.num_tokens()) {
      step.draws.push_back({&sequence, false, {}});
      step.logits.push_back({rows.row_begin + rows.num_rows - 1, sequence.Draw(0)});
    }
  }
  step.batch.Draw(step.logits);
}

// After a step that succeeded, what the next one depends on: cache lengths, shared blocks, new
// tokens, and whose answer they end.
void Batcher::Take(Step& step, Clock::time_point begin) {
  const Clock::time_point now = Clock::now();
  step.taken = true;
  auto draw = step.draws.begin();
  auto logits = step.logits.begin();
  for (const Member& member : step.members) {
    Sequence& sequence = *member.sequence;
    std::vector<TokenDetail> prompt_logprobs;
    bool finite = true;
    for (; draw != step.draws.end() && draw->sequence == &sequence && draw->of_prompt;
         ++draw, ++logits) {
      const SampleRow& sample = logits->sample;
      finite = finite && sample.finite;
      prompt_logprobs.push_back(
          {sample.token, sample.logprob, {draw->top.begin(), draw->top.end()}});
    }
    if (!finite) prompt_logprobs.clear();
    sequence.Advance(member.rows.num_rows, std::move(prompt_logprobs));
    if (finite && member.rows.kind == RowKind::kPrefill) Publish(sequence, member.rows);
    if (draw != step.draws.end() && draw->sequence == &sequence) {
      const SampleRow& sample = logits->sample;
      ++draw;
      ++logits;
      finite = finite && sample.finite && !ETA_FAILPOINT(kEngineSample);
      if (finite && observer_ != nullptr) {
        step.tokens.push_back({.request = &sequence.request(),
                               .attention = &sequence.attention(),
                               .first = sequence.num_output() == 0,
                               .latency = now - sequence.waiting_since()});
      }
      if (finite && sequence.Accept(sample, now)) Retire(step, sequence, absl::OkStatus());
    }
    if (!finite) {
      Retire(step, sequence,
             MakeError(absl::StatusCode::kInternal,
                       "the model's logits leave no token to draw for this request: they are NaN "
                       "or infinite",
                       {.reason = "NONFINITE_LOGITS"}));
    }
  }
  StepReport& report = step.report;
  report.sequences = static_cast<int32_t>(step.members.size());
  report.num_rows = step.batch.num_rows();
  for (const Member& member : step.members) {
    (member.rows.kind == RowKind::kPrefill ? report.prefill_rows : report.decode_rows) +=
        member.rows.num_rows;
  }
  FillGauges(report);
  report.duration = Clock::now() - begin;
  // A step that is not filled says little of how fast a long prompt goes.
  if (report.prefill_rows * 2 >= options_.max_step_tokens) {
    prefill_throughput_.Measure(report.prefill_rows, report.duration, begin);
  }
}

// The blocks that these prompt rows filled may be shared from now on.
void Batcher::Publish(const Sequence& sequence, const SequenceRows& rows) {
  if (!options_.prefix_cache) return;
  const int32_t block_size = geometry_.block_size;
  // Without keys, which only a failed digest leaves it, nothing is shared.
  const auto keys = static_cast<int32_t>(sequence.prefix_keys().size());
  const int32_t end = std::min(sequence.num_computed / block_size, keys);
  for (int32_t i = rows.position / block_size; i < end; ++i) {
    pool_.Publish(sequence.blocks[i], sequence.prefix_keys()[i]);
  }
}

// Takes a sequence off the batch, and its blocks; Complete does the rest.
void Batcher::Retire(Step& step, const Sequence& sequence, absl::Status status) {
  Forget();
  const auto found = std::find_if(running_.begin(), running_.end(),
                                  [&](const auto& other) { return other.get() == &sequence; });
  FreeBlocks(**found);
  step.endings.push_back({std::move(*found), std::move(status)});
  running_.erase(found);
}

// The rest of a step that ran, on which no other step depends: statistics, tokens sent, the report,
// endings.
void Batcher::Complete(Step& step) {
  if (!std::exchange(step.taken, false)) return;
  Count(step);
  for (const Member& member : step.members) member.sequence->Emit();
  step.report.tokens = step.tokens;
  step.report.decode = step.decode_rows;
  if (!step.decode_rows.empty()) {
    step.report.tokens_attended = step.batch.tokens_attended();
    step.report.tokens_read = step.batch.tokens_read();
  }
  if (observer_ != nullptr) observer_->OnStep(step.report);
  for (const Ending& ending : step.endings) End(*ending.sequence, ending.status);
  step.endings.clear();
  step.tokens.clear();
  step.decode_rows.clear();
}

void Batcher::Count(Step& step) const {
  for (const Member& member : step.members) {
    if (member.rows.kind != RowKind::kDecode) continue;
    for (int32_t i = 0; i < member.rows.num_rows; ++i) {
      if (!member.sequence->Counts(member.rows.position + i)) continue;
      step.batch.Count(member.rows, i, member.sequence->counter());
      member.sequence->CountedRow();
      if (observer_ == nullptr) continue;
      step.decode_rows.push_back({.request = &member.sequence->request(),
                                  .attention = &member.sequence->attention(),
                                  .row = member.rows.row_begin + i,
                                  .kv_len = member.rows.position + i + 1,
                                  .screened = step.batch.Screened(member.rows, i)});
    }
  }
}

void Batcher::Report(StepReport report) const {
  if (observer_ == nullptr) return;
  FillGauges(report);
  observer_->OnStep(report);
}

void Batcher::FillGauges(StepReport& report) const {
  report.sequences_running = num_running();
  report.requests_waiting = num_waiting();
  report.blocks_used = pool_.num_used();
  report.blocks_cached = pool_.num_cached();
  report.blocks_free = pool_.num_free();
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
                            .retry_after = wait_estimate().RetryAfter(prefill_tokens(), 0)}));
  std::erase_if(running_, [&](const auto& other) { return other.get() == sequence; });
}

}  // namespace eta
