// A request in flight: its tokens, its blocks, how far its cache has got, and its answer so far.
//
// Made on the caller's thread, then used by the step thread alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/batching/blocks/block_tables.h"
#include "engine/batching/drafts/drafter.h"
#include "engine/batching/estimates/read_cost.h"
#include "engine/batching/formats/bound_answer.h"
#include "engine/batching/prefix_key.h"
#include "engine/batching/sampler.h"
#include "engine/request/observer.h"
#include "engine/request/request.h"
#include "engine/request/shadow/mass_estimate.h"
#include "engine/request/tempered_keys.h"
#include "engine/tokenizer/text_stream.h"
#include "kernels/batch.h"

namespace eta {

struct TenantAccount;

// What a new sequence is made of, all of it checked.
struct SequenceOptions {
  uint64_t handle = 0;
  Request request;
  std::shared_ptr<EventSink> sink;
  std::vector<int32_t> prompt;
  ResolvedAttention attention;  // its `begin` is kAsAsked or kFull
  float rope_factor = 1.0f;     // that gave this base; see rope_base.h
  float rope_theta = 0.0f;
  uint64_t seed = 0;
  Clock::time_point arrival;
  bool share_prefix = true;  // false: no keys are made, nothing is shared
  DraftOptions drafts;
};

// It is wide since queue, planner, pipeline and sampling each ask a request for a part of its own.
class Sequence {
 public:
  Sequence(SequenceOptions options, const ModelConfig& config, const KvGeometry& geometry,
           const Tokenizer& tokenizer);
  // A sequence that was owed an end and had none tells its sink OutOfMemory. That happens only
  // where the step thread had no memory for its work.
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  // From now on its sink is owed an end.
  void Owe() { owed_ = true; }

  uint64_t handle() const { return options_.handle; }
  const Request& request() const { return options_.request; }
  const ResolvedAttention& attention() const { return options_.attention; }
  EventSink& sink() const { return *options_.sink; }
  Clock::time_point deadline() const { return options_.request.deadline; }
  Clock::time_point rank() const { return rank_; }

  int32_t prompt_len() const { return prompt_len_; }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t num_output() const { return num_tokens() - prompt_len_; }
  // With the longest answer.
  int64_t most_tokens() const {
    return int64_t{prompt_len_} + options_.request.stopping.max_tokens;
  }
  std::span<const int32_t> tokens() const { return tokens_; }
  // Keys of the prompt's full blocks.
  std::span<const PrefixKey> prefix_keys() const { return prefix_keys_; }
  // How many of these blocks may be shared, as of MostSharedBlocks.
  int32_t max_shared_blocks(int32_t block_size) const;

  // Tokens whose K and V stand, or stood, in `blocks`. After a preemption both start again from
  // nothing: the prompt is prefilled anew and the answer so far is replayed as decode rows, so that
  // every row is computed as it was the first time.
  int32_t num_computed = 0;
  BlockTables blocks;
  int32_t prompt_left() const { return std::max(0, prompt_len_ - num_computed); }
  TenantAccount* account = nullptr;  // of its tenant, in the batcher that holds it
  int32_t expected_prefill = 0;      // tokens that no shared block covered when the request came
  std::optional<Clock::time_point> congested_since;  // its reader is slow
  std::optional<Clock::time_point> paused_since;     // it has no slot; of those that run

  // Makes drafts behind its newest token, or begins to make them by rows of its own, where that
  // token is the only one to compute; else there are none. As of DraftLength and SelfLength.
  // Rows make at most `most_made`.
  void Draft(int32_t running, const ReadCost& read_cost, int32_t most_made);
  void DropDrafts() { drafter_.Cut(0); }
  // Whether its next row is to make the draft that follows those that are made. Such a row counts
  // for nothing else, and may be left out.
  bool MakesDraft() const { return drafter_.Makes(num_tokens()); }
  // As of Drafter.
  int32_t NumDraftsToMake() const { return drafter_.NumToMake(num_tokens()); }
  bool HasMadeDrafts() const { return drafter_.HasMade(num_tokens()); }
  void MakeAsManyDrafts(int32_t count) { drafter_.MakeAsMany(count); }
  SequenceRows DraftRow(int32_t row_begin) const;
  // What that row drew; null: the format had nothing to draw there.
  void MakeDraft(const SampleRow* drawn);
  // Tokens that may follow the newest one. Nothing but their rows in a step knows of them.
  std::span<const int32_t> drafts() const { return drafter_.DraftsBehind(num_tokens()); }
  int32_t num_drafts() const { return static_cast<int32_t>(drafts().size()); }
  // The first `count` drafts go through the step at hand, and the masks are filled with it of draws
  // behind `from` of them or more.
  void BeginDrafts(int32_t count, int32_t from = 0);
  // The step is done. As of Drafter::Observe.
  void EndDrafts(const DraftCounts& counts) { drafter_.Observe(counts); }
  void CountRejected(int64_t kv_bytes) { drafter_.CountRejected(kv_bytes); }
  void CountMade(const AttentionSums& sums) {
    made_row_bytes_ = sums.kv_bytes_read + sums.index_bytes_read;
    drafter_.CountMade(sums.kv_bytes_read);
  }
  std::span<const uint64_t> tempered() const { return tempered_.words(); }

  // The next rows of this sequence, at most `max_rows`: prompt rows or answer rows, never both.
  // Behind the row of the newest token stand those of drafts.
  SequenceRows NextRows(int32_t row_begin, int32_t max_rows) const;
  // The row after the next one, whose token the next one draws.
  SequenceRows RowAhead(int32_t row_begin) const;
  // Prompt rows computed now for the first time, whose log-probabilities the request wants.
  bool WantsPromptLogprobs(int32_t position) const;

  void Start(Clock::time_point now, int32_t cached_tokens);  // first admission: emits Started
  bool started() const { return started_; }
  void Preempt();

  // Null: no format binds the answer.
  const std::shared_ptr<BoundAnswer>& bound() const { return bound_; }
  // Whether a token is drawn after these rows of it, which reach its newest token.
  bool DrawsAfter(const SequenceRows& rows) const {
    return rows.position + rows.num_rows >= num_tokens();
  }

  // Whether the token that is drawn next is the last one whatever it is.
  bool AtLastToken() const { return num_output() + 1 >= options_.request.stopping.max_tokens; }

  // Rows [position, position + n) are in the cache; their prompt tokens' log-probabilities, if any,
  // go out with the progress report.
  void Advance(int32_t num_rows, std::vector<TokenDetail> prompt_logprobs);
  // What its decode rows read, one after the other; those that were counted before a preemption are
  // not counted again.
  bool Counts(int32_t position) const { return position >= prompt_len_ + counted_rows_; }
  void CountRow(const AttentionSums& sums) {
    attention_.Add(sums);
    row_bytes_ = sums.kv_bytes_read + sums.index_bytes_read + sums.fallback_kv_bytes_read;
    ++counted_rows_;
  }
  // [L], summed over its decode rows, or empty where nobody asked for them.
  std::span<LayerDensity> layers() { return layers_; }
  // The same of prompt rows: the first position that was not counted, and what those from there to
  // `end` read.
  int32_t prompt_counted() const { return prompt_counted_; }
  void CountPrompt(const AttentionSums& sums, int32_t end) {
    attention_.Add(sums);
    prompt_counted_ = std::max(prompt_counted_, end);
  }

  // Whether a decode row has full attention for want of mass, or by the request's wish.
  bool FallsBack(int32_t position) const { return full_from_ && position >= *full_from_; }

  // Whether its own rows are measured (guarded_rows.h), and no others.
  bool guarded() const { return options_.attention.min_mass.has_value(); }
  // A row-layer that was measured.
  void AddShadow(float mass, float error);
  // After all of a step: goes over to full attention for the rows that are not computed yet, if
  // what was measured lies under min_mass. True: it did just now, and a step that is prepared has
  // the wrong row of it.
  [[nodiscard]] bool GoFullBelowMinMass();

  // The draw behind the first `ahead` drafts, as if they had been accepted. A bound answer has been
  // filled since its last token, and has one that may come.
  SampleRow Draw(int32_t logits_row, int32_t ahead = 0);
  SampleRow Force(int32_t logits_row, int32_t token, std::span<TokenLogprob> top) const {
    return sampler_.Force(logits_row, token, top);
  }

  // When the wait for the next token began: the last one, or submission.
  Clock::time_point waiting_since() const {
    return first_token_at_ ? last_token_at_ : options_.arrival;
  }
  // Appends a drawn token; Emit sends what it brought. True: the answer is done, and End is to
  // follow. An error: no memory for its format's part, and it must end with that.
  absl::StatusOr<bool> Accept(const SampleRow& row, Clock::time_point now);
  // The bound answer is complete, and no token can come: it is done without another one.
  void FinishComplete() { Finish(FinishReason::kEndOfText, std::nullopt, ""); }
  // Whether an answer that is done is what its format asks for, as of BoundAnswer::Check.
  absl::Status CheckAnswer() {
    return bound_ == nullptr ? absl::OkStatus() : bound_->Check(ending_.reason);
  }
  void Emit();
  // Offers a request that has not started to its sink, since it cannot start here. True: it goes on
  // elsewhere, and End must not follow.
  bool GiveBack();
  // Tells `observer`, if it is not null, then the sink how it ended: Finished, or Failed with an
  // error.
  void End(const absl::Status& status, Observer* observer);

 private:
  void TellSink(const absl::Status& status);
  FinishedEvent Outcome() const;
  void AttendAt(int32_t position, SequenceRows& rows) const;
  // How a row of drafts attends at that position; null: it would not be sparser than the
  // sequence's own.
  const ResolvedAttention* DraftAttentionAt(int32_t position) const;
  DraftCosts CostsOfDrafts(int32_t running, const ReadCost& read_cost) const;
  // Whether a draft may follow the row of the newest token and `drafts` more.
  bool MayDraftBehind(size_t drafts) const;
  bool Ends(int32_t token) const;
  // What the answer shows of a token beside its text.
  void AddId(const SampleRow& row);
  bool FinishAt(const SampleRow& row, FinishReason reason);
  bool Finish(FinishReason reason, std::optional<int32_t> id, std::string matched_stop);

  SequenceOptions options_;
  Clock::time_point rank_;
  int32_t prompt_len_;
  std::vector<int32_t> tokens_;
  std::vector<PrefixKey> prefix_keys_;
  std::vector<int32_t> eos_ids_;
  TemperedKeys tempered_;
  Sampler sampler_;
  TextStream text_;
  const std::shared_ptr<BoundAnswer> bound_;
  Drafter drafter_;
  // Of rows that make drafts: beside its own attention, and beside full attention.
  std::optional<ResolvedAttention> draft_attention_, full_draft_attention_;
  int64_t row_bytes_ = 0;       // that its newest row read; 0: none was counted
  int64_t made_row_bytes_ = 0;  // likewise of those that made drafts
  AttentionSums attention_;
  std::vector<LayerDensity> layers_;
  int32_t counted_rows_ = 0;
  int32_t prompt_counted_ = 0;
  MassEstimate mass_;                 // of guarded rows
  std::optional<int32_t> full_from_;  // position of the first row with full attention
  int32_t prompt_reported_ = 0;       // prompt rows whose progress has been reported
  int32_t cached_tokens_ = 0;
  int32_t preemptions_ = 0;
  bool owed_ = false;
  bool started_ = false;
  std::optional<Clock::time_point> scheduled_at_;
  std::optional<Clock::time_point> first_token_at_;
  Clock::time_point last_token_at_;
  DeltaEvent unsent_;
  FinishedEvent ending_;  // reason and match
};

}  // namespace eta
