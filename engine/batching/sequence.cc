#include "engine/batching/sequence.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "engine/batching/drafts/draft_attention.h"
#include "engine/batching/scheduler.h"
#include "engine/request/prepared_request.h"
#include "engine/request/shadow/guarded_rows.h"
#include "kernels/system/failpoint.h"

namespace eta {
namespace {

// A bound answer never draws an end of text that does not end it.
std::vector<int32_t> EosIds(const Request& request, const ModelConfig& config) {
  const bool ignored = request.stopping.ignore_eos && request.format == nullptr;
  return ignored ? std::vector<int32_t>() : config.eos_ids;
}

std::vector<int32_t> EndIds(const StoppingOptions& stopping, const ModelConfig& config) {
  std::vector<int32_t> ids = stopping.stop_ids;
  if (!stopping.ignore_eos) ids.insert(ids.end(), config.eos_ids.begin(), config.eos_ids.end());
  return ids;
}

bool Contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

TokenDetail Detail(const SampleRow& row) {
  return {row.token, row.logprob, {row.top.begin(), row.top.end()}};
}

// Full where the request begins with full attention.
ResolvedAttention AttentionOfPrompt(const SequenceOptions& options) {
  ResolvedAttention attention = options.attention;
  if (attention.begin == Begin::kFull) attention.options.sparse_prefill = false;
  return attention;
}

}  // namespace

Sequence::Sequence(SequenceOptions options, const ModelConfig& config, const KvGeometry& geometry,
                   const Tokenizer& tokenizer)
    : blocks(GroupLayers(config), geometry.block_size),
      options_(std::move(options)),
      rank_(Rank(options_.arrival, options_.request.priority)),
      prompt_len_(static_cast<int32_t>(options_.prompt.size())),
      tokens_(std::move(options_.prompt)),
      prefix_keys_(options_.share_prefix ? PrefixKeys(options_.request.tenant, options_.rope_theta,
                                                      AttentionOfPrompt(options_), config.gate,
                                                      tokens_, geometry.block_size)
                                         : std::vector<PrefixKey>{}),
      eos_ids_(EosIds(options_.request, config)),
      tempered_(options_.attention.temper_special
                    ? TemperedKeys(tokenizer.special_ids(), most_tokens())
                    : TemperedKeys()),
      sampler_(options_.request.sampling, options_.request.output,
               options_.request.format != nullptr ? 0 : options_.request.stopping.min_tokens,
               EndIds(options_.request.stopping, config), options_.seed, tokens_),
      text_(tokenizer, tokens_, options_.request.stopping.stop_strings,
            options_.request.stopping.include_stop, options_.request.output.special_tokens,
            options_.request.output.marks),
      bound_(options_.request.format == nullptr
                 ? nullptr
                 : std::make_shared<BoundAnswer>(options_.request, config, tokenizer)),
      drafter_(options_.drafts, options_.request, tokens_),
      layers_(options_.request.output.layer_statistics ? static_cast<size_t>(config.num_layers)
                                                       : 0) {
  tokens_.reserve(tokens_.size() + static_cast<size_t>(options_.request.stopping.max_tokens));
  tempered_.Append(tokens_);
  if (options_.attention.begin == Begin::kFull) full_from_ = 0;
  if (!drafter_.self()) return;
  draft_attention_ = DraftAttention(options_.attention, config);
  ResolvedAttention full = options_.attention;
  full.options.admit_all = true;
  full_draft_attention_ = DraftAttention(full, config);
}

Sequence::~Sequence() {
  if (!owed_) return;
  try {
    TellSink(OutOfMemory());
  } catch (const std::bad_alloc&) {  // the process is about to end, and its connections with it
  }
}

int32_t Sequence::max_shared_blocks(int32_t block_size) const {
  if (prefix_keys_.empty()) return 0;
  return MostSharedBlocks(options_.request, prompt_len_, block_size);
}

SequenceRows Sequence::NextRows(int32_t row_begin, int32_t max_rows) const {
  const bool prefill = num_computed < prompt_len_;
  int32_t end = prefill ? prompt_len_ : num_tokens();
  if (!prefill && num_computed + 1 == end) end += num_drafts();
  // Replayed rows attend as they did.
  if (!prefill && full_from_ && num_computed < *full_from_) end = std::min(end, *full_from_);
  SequenceRows rows;
  rows.row_begin = row_begin;
  rows.num_rows = std::min(max_rows, end - num_computed);
  rows.position = num_computed;
  rows.kind = prefill ? RowKind::kPrefill : RowKind::kDecode;
  rows.rope_theta = options_.rope_theta;
  AttendAt(num_computed, rows);
  rows.tempered = tempered_.words();
  blocks.ApplyTo(rows);
  return rows;
}

const ResolvedAttention* Sequence::DraftAttentionAt(int32_t position) const {
  const auto& attention = FallsBack(position) ? full_draft_attention_ : draft_attention_;
  return attention ? &*attention : nullptr;
}

SequenceRows Sequence::DraftRow(int32_t row_begin) const {
  SequenceRows rows = NextRows(row_begin, 1);
  DraftAttentionAt(num_computed)->ApplyTo(rows);
  rows.position += num_drafts();
  return rows;
}

DraftCosts Sequence::CostsOfDrafts(int32_t running, const ReadCost& read_cost) const {
  // What such a row reads, as long as none has told.
  constexpr double kUsualShare = 0.15;
  DraftCosts costs{.running = running};
  costs.sparser = row_bytes_ > 0 && DraftAttentionAt(num_computed) != nullptr;
  const auto of_row = static_cast<double>(row_bytes_);
  const double of_draft =
      made_row_bytes_ > 0 ? static_cast<double>(made_row_bytes_) : kUsualShare * of_row;
  const double share = read_cost.step() / std::max(1, running);
  costs.self = {.step = share + read_cost.Bytes(of_row),
                .draft = share + read_cost.Bytes(of_draft),
                .row = read_cost.MoreRow(of_row)};
  return costs;
}

bool Sequence::Ends(int32_t token) const {
  return Contains(eos_ids_, token) || Contains(options_.request.stopping.stop_ids, token);
}

// A row that is measured may be the last one that attends so.
bool Sequence::MayDraftBehind(size_t drafts) const {
  return !guarded() || full_from_ ||
         !GuardedRows::Measures(num_computed + static_cast<int32_t>(drafts) - prompt_len_);
}

void Sequence::Draft(int32_t running, const ReadCost& read_cost, int32_t most_made) {
  if (!drafter_.on() || drafter_.Proposed(num_tokens())) return;
  if (prompt_left() > 0 || num_computed + 1 != num_tokens()) return;
  const int32_t most = options_.request.stopping.max_tokens - num_output() - 1;
  DraftCosts costs = CostsOfDrafts(running, read_cost);
  costs.most_made = most_made;
  drafter_.Propose(tokens_, most, costs);
  if (MakesDraft()) {
    if (!MayDraftBehind(0)) DropDrafts();
    return;
  }
  size_t count = 0;
  while (count < drafts().size() && !Ends(drafts()[count]) && MayDraftBehind(count)) ++count;
  if (bound_ != nullptr) count = bound_->CountFitting(drafts().first(count));
  drafter_.Cut(count);
}

void Sequence::MakeDraft(const SampleRow* drawn) {
  const auto made = static_cast<size_t>(num_drafts());
  if (drawn == nullptr || !WhyUndrawn(*drawn, request()).ok() || Ends(drawn->token)) {
    return drafter_.Cut(made);
  }
  drafter_.Make(drawn->token);
  if (!MayDraftBehind(made + 1)) drafter_.Cut(made + 1);
}

void Sequence::BeginDrafts(int32_t count, int32_t from) {
  const auto begun = drafts().first(static_cast<size_t>(count));
  tempered_.CutTo(num_tokens());
  tempered_.Append(begun);
  if (bound_ != nullptr) bound_->Expect(begun, static_cast<size_t>(from));
}

SampleRow Sequence::Draw(int32_t logits_row, int32_t ahead) {
  SampleRow row =
      sampler_.Draw(logits_row, num_output() + ahead, drafts().first(static_cast<size_t>(ahead)));
  if (bound_ != nullptr) row.mask = bound_->mask(static_cast<size_t>(ahead));
  return row;
}

SequenceRows Sequence::RowAhead(int32_t row_begin) const {
  SequenceRows rows = NextRows(row_begin, 1);
  ++rows.position;
  AttendAt(rows.position, rows);
  return rows;
}

// Full attention keeps the source of thresholds and the offset, which gate what it reads.
void Sequence::AttendAt(int32_t position, SequenceRows& rows) const {
  options_.attention.ApplyTo(rows);
  if (!FallsBack(position)) return;
  rows.attention.admit_all = true;
  rows.attention.uniform_floor = false;
  rows.attention.relative = false;
  rows.head_z = nullptr;
}

void Sequence::AddShadow(float mass, float error) {
  attention_.Add(CountShadowRow(mass, error));
  if (guarded()) mass_.Add(mass);
}

bool Sequence::GoFullBelowMinMass() {
  if (!guarded() || full_from_ || !mass_.LiesUnder(*options_.attention.min_mass)) return false;
  full_from_ = num_computed;
  return true;
}

bool Sequence::WantsPromptLogprobs(int32_t position) const {
  return options_.request.output.prompt_logprobs.has_value() && position >= prompt_reported_ &&
         position + 1 < prompt_len_;
}

void Sequence::Start(Clock::time_point now, int32_t cached_tokens) {
  started_ = true;
  scheduled_at_ = now;
  cached_tokens_ = cached_tokens;
  options_.sink->OnStarted({.request_id = options_.request.id,
                            .prompt_tokens = prompt_len_,
                            .cached_tokens = cached_tokens,
                            .max_tokens = options_.request.stopping.max_tokens,
                            .seed = options_.seed,
                            .rope_factor = options_.rope_factor,
                            .rope_theta = options_.rope_theta,
                            .attention = options_.attention});
}

void Sequence::Preempt() {
  num_computed = 0;
  drafter_.Restart();  // rows that make drafts go on behind those that made the others
  ++preemptions_;
}

void Sequence::Advance(int32_t num_rows, std::vector<TokenDetail> prompt_logprobs) {
  num_computed += num_rows;
  const int32_t prompt_done = std::min(num_computed, prompt_len_);
  if (prompt_done <= prompt_reported_) return;
  prompt_reported_ = prompt_done;
  if (prompt_done < prompt_len_ || !prompt_logprobs.empty()) {
    options_.sink->OnPrefill({prompt_done, prompt_len_, std::move(prompt_logprobs)});
  }
}

absl::StatusOr<bool> Sequence::Accept(const SampleRow& row, Clock::time_point now) {
  // Of a bound answer the mask has seen to min_tokens.
  const bool may_end = bound_ != nullptr || num_output() >= options_.request.stopping.min_tokens;
  const bool end_of_text = may_end && Contains(eos_ids_, row.token);
  const bool stops =
      may_end && !end_of_text && Contains(options_.request.stopping.stop_ids, row.token);
  if (bound_ != nullptr && !end_of_text && !stops) RETURN_IF_ERROR(bound_->Accept(row.token));
  if (!first_token_at_) first_token_at_ = now;
  last_token_at_ = now;
  tokens_.push_back(row.token);
  tempered_.CutTo(num_tokens() - 1);  // of drafts
  tempered_.Append(std::span(&row.token, 1));
  sampler_.Append(row.token);

  if (end_of_text) return FinishAt(row, FinishReason::kEndOfText);
  if (stops) return FinishAt(row, FinishReason::kStopToken);
  const OutputOptions& output = options_.request.output;
  TextStream::Emission emission = text_.Push(row.token);
  if (output.text) {
    unsent_.text += emission.text;
    if (emission.marked) unsent_.marks.push_back({.at = unsent_.text.size(), .id = row.token});
  }
  AddId(row);
  if (emission.matched_stop) {
    return Finish(FinishReason::kStopString, std::nullopt, *emission.matched_stop);
  }
  if (num_output() >= options_.request.stopping.max_tokens) {
    return Finish(FinishReason::kLength, std::nullopt, "");
  }
  return false;
}

void Sequence::Emit() {
  (void)ETA_FAILPOINT(kEngineDeliver);
  DeltaEvent delta = std::exchange(unsent_, {});
  if (delta.text.empty() && delta.marks.empty() && delta.ids.empty() && delta.logprobs.empty()) {
    return;
  }
  options_.sink->OnDelta(std::move(delta));
}

void Sequence::AddId(const SampleRow& row) {
  const OutputOptions& output = options_.request.output;
  if (output.ids) unsent_.ids.push_back(row.token);
  if (output.logprobs) unsent_.logprobs.push_back(Detail(row));
}

bool Sequence::FinishAt(const SampleRow& row, FinishReason reason) {
  const OutputOptions& output = options_.request.output;
  if (output.special_tokens && options_.request.stopping.include_stop) {
    std::string text = text_.Push(row.token).text;
    if (output.text) unsent_.text += text;
  }
  if (output.end_id) AddId(row);
  return Finish(reason, row.token, "");
}

bool Sequence::Finish(FinishReason reason, std::optional<int32_t> id, std::string matched_stop) {
  if (reason != FinishReason::kStopString) {
    const std::string rest = text_.Flush();
    if (options_.request.output.text) unsent_.text += rest;
    if (text_.matched_stop()) {  // of a character that turned out to be none
      reason = FinishReason::kStopString;
      id.reset();
      matched_stop = *text_.matched_stop();
    }
  }
  if (reason == FinishReason::kLength && bound_ != nullptr && !bound_->complete()) {
    reason = FinishReason::kCutOff;
  }
  ending_.reason = reason;
  ending_.matched_id = id;
  ending_.matched_stop = std::move(matched_stop);
  return true;
}

bool Sequence::GiveBack() {
  PreparedRequest prepared{.request = std::move(options_.request),
                           .prompt = std::move(tokens_),
                           .arrival = options_.arrival};
  const bool accepted = options_.sink->OnGivenBack(prepared);
  if (accepted) owed_ = false;
  options_.request = std::move(prepared.request);
  tokens_ = std::move(prepared.prompt);
  return accepted;
}

void Sequence::End(const absl::Status& status, Observer* observer) {
  if (observer != nullptr) observer->OnRequestEnd(request(), status, Outcome());
  TellSink(status);
}

void Sequence::TellSink(const absl::Status& status) {
  if (status.ok()) {
    options_.sink->OnFinished(Outcome());
  } else {
    options_.sink->OnFailed(status, Outcome());
  }
  owed_ = false;
}

FinishedEvent Sequence::Outcome() const {
  FinishedEvent outcome = ending_;
  outcome.prompt_tokens = prompt_len_;
  outcome.cached_tokens = cached_tokens_;
  outcome.output_tokens = num_output();
  outcome.preemptions = preemptions_;
  if (scheduled_at_) outcome.timing.queue = *scheduled_at_ - options_.arrival;
  if (first_token_at_) {
    outcome.timing.prefill = *first_token_at_ - *scheduled_at_;
    outcome.timing.first_token = *first_token_at_ - options_.arrival;
    outcome.timing.decode = last_token_at_ - *first_token_at_;
  }
  outcome.attention = attention_;
  outcome.drafts = drafter_.counts();
  if (attention_.decode_rows > 0) outcome.layers = layers_;
  const auto rows = static_cast<double>(attention_.decode_rows);
  for (LayerDensity& layer : outcome.layers) {
    layer.head_density /= rows;
    layer.union_density /= rows;
  }
  if (full_from_) outcome.full_from = std::max(0, *full_from_ + 1 - prompt_len_);
  return outcome;
}

}  // namespace eta
