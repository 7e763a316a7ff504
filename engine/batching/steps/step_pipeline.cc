#include "engine/batching/steps/step_pipeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/batching/steps/running_step.h"
#include "engine/batching/steps/step_reads.h"
#include "engine/request/shadow/guarded_rows.h"
#include "kernels/system/failpoint.h"

namespace eta {
namespace {

ShadowSampler::Costs CostsOf(const Model& model, const KvCache& cache, double rate) {
  return {.layers = model.config().full_layers(),
          .rate = rate,
          .key_bytes = KvTokenBytes(cache.geometry()) * cache.geometry().num_kv_heads,
          .step_bytes = static_cast<int64_t>(model.row_bytes())};
}

}  // namespace

StepPipeline::StepPipeline(Model& model, const KvCache& cache, BlockPool& pool,
                           const BatcherOptions& options, Observer* observer)
    : options_(options),
      block_size_(cache.geometry().block_size),
      pool_(pool),
      observer_(observer),
      full_layers_(model.config().full_layers()),
      sampler_(CostsOf(model, cache, options.shadow_rate)),
      read_cost_(static_cast<int64_t>(model.row_bytes())),
      current_(std::make_unique<RunningStep>(model, cache)),
      next_(std::make_unique<RunningStep>(model, cache)) {}

StepPipeline::~StepPipeline() = default;

void StepPipeline::Begin(int32_t preemptions) {
  next_->members.clear();
  next_->batch.Clear();
  next_->report = {.preemptions = preemptions};
}

void StepPipeline::Add(Sequence& sequence, int32_t num_rows) {
  SequenceRows rows = sequence.NextRows(next_->batch.num_rows(), num_rows);
  const int32_t drafts = std::max(0, rows.position + rows.num_rows - sequence.num_tokens());
  sequence.BeginDrafts(drafts);
  rows.tempered = sequence.tempered();
  next_->members.push_back({.sequence = &sequence, .rows = rows, .drafts = drafts});
  next_->report.drafts.drafted += drafts;
  next_->batch.Add(rows, sequence.tokens(), sequence.drafts().first(static_cast<size_t>(drafts)));
}

void StepPipeline::AddDraft(Sequence& sequence) {
  SequenceRows rows = sequence.DraftRow(next_->batch.num_rows());
  sequence.BeginDrafts(sequence.num_drafts(), sequence.num_drafts());
  rows.tempered = sequence.tempered();
  next_->members.push_back({.sequence = &sequence, .rows = rows, .makes_draft = true});
  const std::span<const int32_t> drafts = sequence.drafts();
  next_->batch.Add(rows, sequence.tokens(), drafts.last(std::min<size_t>(1, drafts.size())));
}

void StepPipeline::AddAhead(Sequence& sequence, const BlockTables::Lengths& lengths) {
  next_->members.push_back({&sequence, sequence.RowAhead(next_->batch.num_rows()), lengths});
  next_->batch.AddUnknown(next_->members.back().rows);
}

bool StepPipeline::CanPrepare() const {
  return current_->batch.defers() && current_->only_decodes();
}

void StepPipeline::Prepare() {
  prepared_ = Note(*next_).ok();
}

bool StepPipeline::IsPrepared(const StepPlan& plan,
                              std::span<const std::unique_ptr<Sequence>> running) const {
  return plan.preempted.empty() && plan.admitted.empty() &&
         std::equal(plan.work.begin(), plan.work.end(), next_->members.begin(),
                    next_->members.end(),
                    [&](const StepPlan::Work& work, const StepMember& member) {
                      return running[work.index].get() == member.sequence && work.num_rows == 1 &&
                             work.new_blocks == 0 && work.makes_draft == member.makes_draft;
                    });
}

void StepPipeline::Forget() {
  if (!std::exchange(prepared_, false)) return;
  next_->batch.Discard();
  // The last block allocated goes back first, so that the pool is what it was.
  for (auto member = next_->members.rbegin(); member != next_->members.rend(); ++member) {
    member->sequence->blocks.ShrinkTo(pool_, member->lengths);
  }
}

bool StepPipeline::next_empty() const {
  return next_->members.empty();
}

absl::Status StepPipeline::Forward() {
  FindBound(*next_);
  if (!next_->batch.defers()) masks_.Begin(next_->bound);  // its ops run as they are noted
  if (std::exchange(prepared_, false)) {
    for (const StepMember& member : next_->members) {
      next_->batch.SetToken(member.rows.row_begin, member.sequence->tokens().back());
    }
    return absl::OkStatus();
  }
  absl::Status noted = Note(*next_);
  if (!noted.ok()) masks_.Join();
  return noted;
}

// A step's masks depend on its tokens, so they are none of what is prepared.
void StepPipeline::FindBound(RunningStep& step) {
  step.bound.clear();
  for (const StepMember& member : step.members) {
    const Sequence& sequence = *member.sequence;
    if (sequence.bound() != nullptr && sequence.DrawsAfter(member.rows)) {
      step.bound.push_back(sequence.bound());
    }
  }
}

// The device and the crew have work before this thread goes on to what only it can do.
void StepPipeline::FillMasks(RunningStep& step) {
  if (step.bound.empty()) return;
  step.batch.LaunchForward();
  if (step.batch.defers()) masks_.Begin(step.bound);
  Complete(*next_);
  const Clock::time_point begin = Clock::now();
  masks_.Join();
  step.report.mask_delay = Clock::now() - begin;
  step.report.masks = static_cast<int32_t>(step.bound.size());
  for (const auto& bound : step.bound) step.report.mask_time += bound->fill_time();
  step.bound.clear();
}

absl::Status StepPipeline::Note(RunningStep& step) {
  ChooseShadow(step);
  return step.batch.Forward({.shadow = step.shadow.Layers()});
}

// Which row-layers the step measures against full attention: of requests with min_mass their own,
// of the others what is drawn. No row is measured again when it is replayed.
void StepPipeline::ChooseShadow(RunningStep& step) {
  step.shadow.Clear();
  step.shadow_work = {};
  candidates_.clear();
  for (size_t member = 0; member < step.members.size(); ++member) {
    const Sequence* const sequence = step.members[member].sequence;
    const SequenceRows& rows = step.members[member].rows;
    if (rows.kind != RowKind::kDecode || step.members[member].makes_draft) continue;
    for (int32_t i = 0; i < rows.num_rows; ++i) {
      const int32_t position = rows.position + i;
      if (!step.batch.Prunes(rows, i) || !sequence->Counts(position)) continue;
      ShadowRow row = {.row = rows.row_begin + i, .member = member, .kv_len = position + 1};
      if (!sequence->guarded()) {
        candidates_.push_back(row);
        continue;
      }
      const int32_t of_answer = position - sequence->prompt_len();
      if (!GuardedRows::Measures(of_answer)) continue;
      const auto full = static_cast<int32_t>(full_layers_.size());
      for (const int32_t layer : GuardedRows::Layers(of_answer, full)) {
        row.layer = full_layers_[static_cast<size_t>(layer)];
        step.shadow.Add(row);
      }
    }
  }
  ShadowSampler::Work& work = step.shadow_work;
  work.guarded_keys = step.shadow.keys();
  work.rows = static_cast<int64_t>(candidates_.size());
  work.drawn = sampler_.Draw(candidates_, step.shadow);
  work.drawn_keys = step.shadow.keys() - work.guarded_keys;
}

void StepPipeline::Launch() {
  std::swap(current_, next_);
  current_->number = sampler_.Begin();
  FillMasks(*current_);
  DrawTokens(*current_);
  current_->batch.Launch();
  Complete(*next_);
}

absl::Status StepPipeline::Finish() {
  return current_->batch.Finish();
}

void StepPipeline::DrawTokens(RunningStep& step) {
  step.draws.clear();
  step.logits.clear();
  for (const StepMember& member : step.members) {
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
    if (!sequence.DrawsAfter(rows)) continue;
    const BoundAnswer* const bound = sequence.bound().get();
    if (member.makes_draft) {
      const int32_t made = sequence.num_drafts();
      if (bound != nullptr && !bound->may_draw(static_cast<size_t>(made))) continue;
      step.draws.push_back({&sequence, false, {}});
      step.logits.push_back({rows.row_begin, sequence.Draw(0, made)});
      step.logits.back().sample.top = {};  // nobody asked for these
      continue;
    }
    const int32_t first = rows.row_begin + rows.num_rows - 1 - member.drafts;
    for (int32_t i = 0; i <= member.drafts; ++i) {
      if (bound != nullptr && !bound->may_draw(static_cast<size_t>(i))) break;
      step.draws.push_back({&sequence, false, {}});
      step.logits.push_back({first + i, sequence.Draw(0, i)});
    }
  }
  step.batch.Draw(step.logits);
}

std::vector<StepPipeline::Ended> StepPipeline::Commit() {
  RunningStep& step = *current_;
  const Clock::time_point now = Clock::now();
  step.committed = true;
  std::vector<Ended> ended;
  goes_on_.clear();
  size_t draw = 0;
  for (StepMember& member : step.members) {
    std::optional<absl::Status> end = Accept(step, member, draw, now);
    goes_on_.push_back(!end.has_value());
    if (end) ended.push_back({member.sequence, *std::move(end)});
  }
  const bool attends_otherwise = TakeShadow(step, now);
  if (!ended.empty() || attends_otherwise) Forget();  // a prepared step has the rows as they were
  StepReport& report = step.report;
  report.sequences = static_cast<int32_t>(step.members.size());
  report.num_rows = step.batch.num_rows();
  for (const StepMember& member : step.members) {
    (member.rows.kind == RowKind::kPrefill ? report.prefill_rows : report.decode_rows) +=
        member.rows.num_rows;
  }
  return ended;
}

// What the step measured, to those who are measured. True: one of them attends otherwise from its
// next row on.
bool StepPipeline::TakeShadow(RunningStep& step, Clock::time_point now) {
  if (step.shadow.empty()) return false;
  step.shadow.Read();
  std::vector<MassEstimate> masses(step.members.size());
  for (const ShadowRow& row : step.shadow.rows()) {
    if (!std::isfinite(row.mass) || !std::isfinite(row.error)) continue;
    const StepMember& member = step.members[row.member];
    if (row.row >= member.rows.row_begin + member.rows.num_rows - member.rejected) continue;
    Sequence& sequence = *member.sequence;
    sequence.AddShadow(row.mass, row.error);
    masses[row.member].Add(row.mass);
    if (observer_ == nullptr) continue;
    step.shadow_rows.push_back({.request = &sequence.request(),
                                .attention = &sequence.attention(),
                                .kv_len = row.kv_len,
                                .mass = row.mass,
                                .error = row.error});
  }
  bool changed = false;
  for (size_t i = 0; i < step.members.size(); ++i) {
    const Sequence& sequence = *step.members[i].sequence;
    if (options_.live_mass != nullptr && masses[i].count() > 0) {
      options_.live_mass->Add(sequence.request().tenant, sequence.attention(), masses[i], now);
    }
    if (goes_on_[i] && step.members[i].sequence->GoFullBelowMinMass()) changed = true;
  }
  return changed;
}

std::optional<absl::Status> StepPipeline::Accept(RunningStep& step, StepMember& member,
                                                 size_t& draw, Clock::time_point now) {
  Sequence& sequence = *member.sequence;
  const auto is_next = [&](bool of_prompt) {
    return draw < step.draws.size() && step.draws[draw].sequence == &sequence &&
           step.draws[draw].of_prompt == of_prompt;
  };
  if (member.makes_draft) {
    sequence.MakeDraft(is_next(/*of_prompt=*/false) ? &step.logits[draw++].sample : nullptr);
    return std::nullopt;
  }
  std::vector<TokenDetail> prompt_logprobs;
  bool finite = true;
  for (; is_next(/*of_prompt=*/true); ++draw) {
    const SampleRow& sample = step.logits[draw].sample;
    const std::vector<TokenLogprob>& top = step.draws[draw].top;
    finite = finite && sample.finite;
    prompt_logprobs.push_back({sample.token, sample.logprob, {top.begin(), top.end()}});
  }
  if (!finite) prompt_logprobs.clear();
  sequence.Advance(member.rows.num_rows - member.drafts, std::move(prompt_logprobs));
  if (finite && member.rows.kind == RowKind::kPrefill) Publish(sequence, member.rows);
  const size_t first = draw;
  while (is_next(/*of_prompt=*/false)) ++draw;
  std::optional<absl::Status> end;
  if (!finite) {
    end = NonFiniteLogits();
  } else if (sequence.DrawsAfter(member.rows)) {
    end = AcceptDraws(step, member, std::span(step.logits).subspan(first, draw - first), now);
  }
  // A prepared step begins with the next row: it sees nothing before that row's window either.
  sequence.blocks.ReleaseBehind(pool_, sequence.num_computed);
  return end;
}

std::optional<absl::Status> StepPipeline::AcceptDraws(RunningStep& step, StepMember& member,
                                                      std::span<const RowLogits> draws,
                                                      Clock::time_point now) {
  Sequence& sequence = *member.sequence;
  const auto rows = static_cast<size_t>(member.drafts) + 1;
  const auto begun = sequence.drafts().first(rows - 1);
  const std::vector<int32_t> drafts(begun.begin(), begun.end());
  DraftCounts counts{.drafted = member.drafts};
  std::optional<absl::Status> end;
  for (size_t i = 0; i < rows; ++i) {
    if (i > 0) {
      sequence.Advance(1, {});
      ++counts.steps_saved;
    }
    if (i == draws.size()) {  // the format has nothing to draw there
      end = sequence.bound()->Undrawn(i);
      if (end->ok()) sequence.FinishComplete();
      break;
    }
    const SampleRow& sample = draws[i].sample;
    end = AcceptDraw(step, sequence, sample, now);
    const bool holds = i < drafts.size() && sample.token == drafts[i];
    if (holds && (!end || end->ok())) ++counts.accepted;
    if (end || !holds) break;
  }
  if (member.drafts == 0) return end;
  member.rejected = member.drafts - static_cast<int32_t>(counts.steps_saved);
  sequence.EndDrafts(counts);
  sequence.blocks.ShrinkTo(pool_, sequence.num_computed);
  step.report.drafts.Add({.accepted = counts.accepted, .steps_saved = counts.steps_saved});
  return end;
}

std::optional<absl::Status> StepPipeline::AcceptDraw(RunningStep& step, Sequence& sequence,
                                                     const SampleRow& sample,
                                                     Clock::time_point now) {
  const absl::Status undrawn = WhyUndrawn(sample, sequence.request());
  if (!undrawn.ok()) return undrawn;
  if (ETA_FAILPOINT(kEngineSample)) return NonFiniteLogits();
  const TokenReport report = {.request = &sequence.request(),
                              .attention = &sequence.attention(),
                              .first = sequence.num_output() == 0,
                              .latency = now - sequence.waiting_since()};
  const absl::StatusOr<bool> done = sequence.Accept(sample, now);
  if (!done.ok()) return done.status();
  if (observer_ != nullptr) step.tokens.push_back(report);
  return *done ? std::optional(absl::OkStatus()) : std::nullopt;
}

// The blocks that these prompt rows filled may be shared from now on.
void StepPipeline::Publish(const Sequence& sequence, const SequenceRows& rows) {
  if (!options_.prefix_cache) return;
  // Only a failed digest leaves a sequence without keys; then nothing is shared.
  const std::span<const PrefixKey> keys = sequence.prefix_keys();
  const size_t block_tokens = static_cast<size_t>(block_size_);
  const size_t end =
      std::min(static_cast<size_t>(sequence.num_computed) / block_tokens, keys.size());
  const size_t begin = static_cast<size_t>(rows.position) / block_tokens;
  sequence.blocks.Publish(pool_, keys, begin, end, sequence.tokens());
}

void StepPipeline::Retire(std::unique_ptr<Sequence> sequence, absl::Status status) {
  current_->endings.push_back({std::move(sequence), std::move(status)});
}

void StepPipeline::Complete() {
  Complete(*current_);
}

void StepPipeline::Complete(RunningStep& step) {
  if (!std::exchange(step.committed, false)) return;
  const StepReads reads = CountReads(step, observer_ != nullptr);
  sampler_.Finish(step.number, reads.work);
  if (step.report.prefill_rows == 0 && reads.all_counted) {
    read_cost_.Measure(reads.load, step.report.duration);
  }
  for (const StepMember& member : step.members) member.sequence->Emit();
  step.report.tokens = step.tokens;
  step.report.decode = step.decode_rows;
  step.report.prefill = step.prefill_rows;
  step.report.shadow = step.shadow_rows;
  step.report.expert_rows = step.batch.expert_rows();
  if (!step.decode_rows.empty()) {
    step.report.tokens_attended = step.batch.tokens_attended();
    step.report.tokens_read = step.batch.tokens_read();
  }
  if (observer_ != nullptr) observer_->OnStep(step.report);
  for (const StepEnding& ending : step.endings) {
    const absl::Status answer = ending.status.ok() ? ending.sequence->CheckAnswer() : ending.status;
    ending.sequence->End(answer, observer_);
  }
  step.endings.clear();
  step.tokens.clear();
  step.decode_rows.clear();
  step.prefill_rows.clear();
  step.shadow_rows.clear();
}

void StepPipeline::Abandon() {
  current_->endings.clear();
  next_->endings.clear();
}

size_t StepPipeline::num_sequences() const {
  return current_->members.size();
}

StepReport& StepPipeline::report() {
  return current_->report;
}

Sequence& StepPipeline::latest() const {
  const auto latest = std::max_element(current_->members.begin(), current_->members.end(),
                                       [](const StepMember& a, const StepMember& b) {
                                         return a.sequence->rank() < b.sequence->rank();
                                       });
  return *latest->sequence;
}

}  // namespace eta
