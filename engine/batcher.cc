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
  int32_t row;                    // of the batch
  int32_t prompt_token = -1;      // >= 0: the known next token of the prompt, not drawn
  std::vector<TokenLogprob> top;  // storage of a prompt token's alternatives
  SampleRow sample;
};

namespace {

constexpr std::chrono::seconds kEstimateLifetime{30};

milliseconds PrefillTime(int64_t tokens, double rate) {
  if (rate <= 0.0) return milliseconds(0);
  return milliseconds(static_cast<int64_t>(1000.0 * static_cast<double>(tokens) / rate));
}

absl::Status DeadlineError(bool started) {
  return MakeError(absl::StatusCode::kDeadlineExceeded,
                   started ? "deadline: passed while the request was running"
                           : "deadline: passed while the request was queued",
                   {.reason = started ? "DEADLINE_DECODING" : "DEADLINE_QUEUED"});
}

}  // namespace

milliseconds PredictRetry(int64_t tokens, double rate) {
  return std::clamp(PrefillTime(tokens, rate), milliseconds(100), milliseconds(30'000));
}

Batcher::Batcher(Model& model, KvCache& cache, const BatcherOptions& options, Observer* observer)
    : model_(model),
      cache_(cache),
      options_(options),
      observer_(observer),
      pool_(cache.num_blocks()) {}

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
  // An old estimate may be far off, and nothing but work corrects it.
  if (now - prefill_measured_at_ > kEstimateLifetime) return absl::OkStatus();
  const milliseconds predicted = PrefillTime(ahead + sequence.expected_prefill, prefill_rate_);
  if (now + predicted <= sequence.deadline()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "the deadline is shorter than the predicted wait and prefill",
                   {.reason = "DEADLINE_TOO_SHORT",
                    .metadata = {{"predicted_ms", absl::StrCat(predicted.count())}},
                    .retry_after = PredictRetry(ahead, prefill_rate_)});
}

void Batcher::Queue(std::unique_ptr<Sequence> sequence) {
  const auto after = std::upper_bound(
      waiting_.begin(), waiting_.end(), sequence->rank(),
      [](Clock::time_point rank, const auto& other) { return rank < other->rank(); });
  waiting_.insert(after, std::move(sequence));
}

void Batcher::Cancel(uint64_t handle) {
  for (auto* list : {&running_, &waiting_}) {
    const auto found = std::find_if(list->begin(), list->end(),
                                    [&](const auto& other) { return other->handle() == handle; });
    if (found == list->end()) continue;
    End(**found, MakeError(absl::StatusCode::kCancelled, "cancelled by the client",
                           {.reason = "CLIENT_CANCELLED"}));
    list->erase(found);
    return;
  }
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

absl::StatusOr<bool> Batcher::Step(Clock::time_point now) {
  Expire(now);
  const StepPlan plan = Plan();
  const std::vector<Member> members = Seat(plan, now);
  if (members.empty()) return false;
  std::vector<Draw> draws;
  const absl::Status status = Run(members, draws);
  if (absl::IsResourceExhausted(status)) {
    GiveWay(members);
    return true;
  }
  if (!status.ok()) {
    FailAll(MakeError(absl::StatusCode::kInternal, "the device failed during a step",
                      {.reason = "DEVICE_ERROR"}));
    return status;
  }
  Settle(members, draws);
  Report(now, members, static_cast<int32_t>(plan.preempted.size()));
  return true;
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
                            .retry_after = PredictRetry(prefill_tokens(), prefill_rate_)}));
  std::erase_if(running_, [&](const auto& other) { return other.get() == sequence; });
}

// Deadlines of all; patience with slow readers.
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
  input.block_size = cache_.geometry().block_size;
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
  const int32_t block_size = cache_.geometry().block_size;
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
  const int32_t block_size = cache_.geometry().block_size;
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
  const int32_t block_size = cache_.geometry().block_size;
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

absl::Status Batcher::Run(std::span<const Member> members, std::vector<Draw>& draws) {
  tokens_.clear();
  rows_.clear();
  for (const Member& member : members) {
    const SequenceRows& rows = member.rows;
    const auto sequence_tokens = member.sequence->tokens();
    rows_.push_back(rows);
    tokens_.insert(tokens_.end(), sequence_tokens.begin() + rows.position,
                   sequence_tokens.begin() + rows.position + rows.num_rows);
    for (int32_t i = 0; i < rows.num_rows; ++i) {
      const int32_t position = rows.position + i;
      if (member.sequence->WantsPromptLogprobs(position)) {
        const auto alternatives =
            static_cast<size_t>(*member.sequence->request().output.prompt_logprobs);
        draws.push_back({member.sequence,
                         rows.row_begin + i,
                         sequence_tokens[static_cast<size_t>(position) + 1],
                         std::vector<TokenLogprob>(alternatives),
                         {}});
      }
    }
    if (rows.position + rows.num_rows == member.sequence->num_tokens()) {
      draws.push_back({member.sequence, rows.row_begin + rows.num_rows - 1, -1, {}, {}});
    }
  }

  const BatchView batch = {tokens_, rows_};
  const ModelConfig& config = model_.config();
  const auto row_layers =
      static_cast<size_t>(batch.num_rows()) * static_cast<size_t>(config.num_layers);
  tokens_attended_.resize(row_layers * static_cast<size_t>(config.num_query_heads));
  tokens_read_.resize(row_layers * static_cast<size_t>(config.num_kv_heads));
  const absl::Status forward = model_.Forward(
      batch, cache_,
      {.tokens_attended = tokens_attended_.data(), .tokens_read = tokens_read_.data()});
  if (!forward.ok()) return forward;

  constexpr size_t kSlice = Model::max_logit_rows();
  for (size_t begin = 0; begin < draws.size(); begin += kSlice) {
    const std::span<Draw> slice =
        std::span(draws).subspan(begin, std::min(kSlice, draws.size() - begin));
    std::vector<int32_t> rows;
    std::vector<SampleRow> samples;
    for (Draw& draw : slice) {
      const auto logits_row = static_cast<int32_t>(rows.size());
      rows.push_back(draw.row);
      samples.push_back(draw.prompt_token >= 0
                            ? draw.sequence->Force(logits_row, draw.prompt_token, draw.top)
                            : draw.sequence->Draw(logits_row));
    }
    model_.ComputeLogits(rows);
    model_.Sample(samples);
    const absl::Status finished = model_.Finish();
    if (!finished.ok()) return finished;
    for (size_t i = 0; i < slice.size(); ++i) slice[i].sample = samples[i];
  }
  return draws.empty() ? model_.Finish() : absl::OkStatus();
}

// Books what the step read, before anything moves.
void Batcher::Count(std::span<const Member> members, int32_t num_rows) {
  const ModelConfig& config = model_.config();
  const int32_t block_size = cache_.geometry().block_size;
  for (const Member& member : members) {
    if (member.rows.kind != RowKind::kDecode) continue;
    for (int32_t i = 0; i < member.rows.num_rows; ++i) {
      const int32_t position = member.rows.position + i;
      if (!member.sequence->Counts(position)) continue;
      const int32_t kv_len = position + 1;
      const AttentionOptions& attention = member.rows.attention;
      const int32_t full_blocks = kv_len / block_size;
      const bool screens = !attention.admit_all && full_blocks > attention.pinned_blocks;
      const int32_t screened = screens ? full_blocks : 0;
      for (int32_t layer = 0; layer < config.num_layers; ++layer) {
        const int64_t row = int64_t{layer} * num_rows + member.rows.row_begin + i;
        member.sequence->counter().AddLayer(
            layer, tokens_attended_.data() + row * config.num_query_heads,
            tokens_read_.data() + row * config.num_kv_heads, kv_len, screened);
      }
      member.sequence->CountedRow();
    }
  }
}

// After a step that succeeded: cache lengths, shared blocks, statistics, new tokens, endings.
void Batcher::Settle(std::span<const Member> members, std::span<Draw> draws) {
  Count(members, static_cast<int32_t>(tokens_.size()));
  const Clock::time_point now = Clock::now();
  std::vector<Sequence*> ended;
  auto draw = draws.begin();
  for (const Member& member : members) {
    Sequence& sequence = *member.sequence;
    std::vector<TokenDetail> prompt_logprobs;
    bool finite = true;
    for (; draw != draws.end() && draw->sequence == &sequence && draw->prompt_token >= 0; ++draw) {
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
  const int32_t block_size = cache_.geometry().block_size;
  for (int32_t i = rows.position / block_size; i < sequence.num_computed / block_size; ++i) {
    pool_.Publish(sequence.blocks[i], sequence.prefix_keys()[i]);
  }
}

void Batcher::Report(Clock::time_point begin, std::span<const Member> members,
                     int32_t preemptions) {
  StepReport report;
  report.duration = Clock::now() - begin;
  for (const Member& member : members) {
    (member.rows.kind == RowKind::kPrefill ? report.prefill_rows : report.decode_rows) +=
        member.rows.num_rows;
  }
  // A step that is not filled says little of how fast a long prompt goes.
  if (report.prefill_rows * 2 >= options_.max_step_tokens) {
    const double rate = static_cast<double>(report.prefill_rows) /
                        std::chrono::duration<double>(report.duration).count();
    prefill_rate_ = prefill_rate_ == 0.0 ? rate : 0.8 * prefill_rate_ + 0.2 * rate;
    prefill_measured_at_ = begin;
  }
  if (observer_ == nullptr) return;
  report.sequences_running = num_running();
  report.requests_waiting = num_waiting();
  report.blocks_used = pool_.num_used();
  report.blocks_cached = pool_.num_cached();
  report.blocks_free = pool_.num_free();
  report.preemptions = preemptions;
  observer_->OnStep(report);
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
