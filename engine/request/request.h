// A generation request and the events that answer it: plain structs, no wire format.
//
// Every limit named here is checked by ValidateRequest (request_validation.h) before a request
// reaches the engine, with the field's name as the API spells it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/text_mark.h"
#include "engine/chat/chat.h"
#include "engine/request/attention_settings.h"
#include "engine/request/attention_sums.h"
#include "engine/request/draft_counts.h"
#include "engine/request/threshold_profile.h"
#include "kernels/batch.h"
#include "kernels/params/sampling.h"

namespace eta {

class CompiledFormat;  // engine/format/answer_guide.h

struct SamplingOptions {
  float temperature = 1.0f;         // [0, 2]; 0 = greedy
  int32_t top_k = 0;                // >= 0; 0 = off
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  float repetition_penalty = 1.0f;  // (0, 10]
  float presence_penalty = 0.0f;    // [-2, 2]
  float frequency_penalty = 0.0f;   // [-2, 2]
  std::vector<LogitBias> bias;      // at most 256, each in [-100, 100], ids distinct
  std::optional<uint64_t> seed;     // absent: the engine draws one and names it in the answer
};

struct StoppingOptions {
  int32_t max_tokens = 256;  // >= 1
  // max_tokens is the most: it is lowered to limits.max_output_tokens and to what the prompt leaves
  // of the context, of the cache and of the tenant's share.
  bool fit_max_tokens = false;
  int32_t min_tokens = 0;                 // <= max_tokens; end-of-text and stop ids wait until then
  std::vector<std::string> stop_strings;  // at most 4, 1 to 64 bytes each, valid UTF-8
  std::vector<int32_t> stop_ids;          // at most 16
  bool ignore_eos = false;
  bool include_stop = false;  // keep the matched stop string, or shown stop token, in the text

  // The fewest tokens that there must be room for.
  int32_t least_tokens() const { return fit_max_tokens ? std::max(1, min_tokens) : max_tokens; }
};

struct OutputOptions {
  bool text = true;
  bool ids = false;
  std::optional<int32_t> logprobs;         // alternatives per token, 0 to 20
  std::optional<int32_t> prompt_logprobs;  // the same for prompt tokens (all but the first)
  // The token that ends the answer, end-of-text or a stop id, is among the ids and their
  // log-probabilities too.
  bool end_id = false;
  bool layer_statistics = false;
  bool special_tokens = false;  // they stand in the text, as the vocabulary spells them
  // Special tokens that have no text but are told with it (DeltaEvent.marks): ascending. None where
  // special_tokens.
  std::vector<int32_t> marks;
};

// kDynamic: predicted thresholds; of a model that predicts none, relative ones, which need an index
// of kind outlier.
enum class AttentionMode : uint8_t { kFull, kDynamic, kProfile };

// With what an answer begins whose request has a min_mass. kFull: full attention, of the prompt and
// of every token. kFullWhereRecentMassWasLow: the engine makes one of the others of it
// (request/shadow/live_mass.h).
enum class Begin : uint8_t { kAsAsked, kFull, kFullWhereRecentMassWasLow };

// What the client asked for. Settings that the mode does not read (all but offset and special_keys
// of full attention; z of relative thresholds; begin without a min_mass) are refused, never
// ignored.
struct AttentionChoice {
  std::optional<AttentionMode> mode;                // absent: dynamic if the model has it
  std::shared_ptr<const ThresholdProfile> profile;  // kProfile only
  AttentionSettings settings;
  std::optional<Begin> begin;  // needs a min_mass, its own or the profile's
};

// What it became: named in the first message, used for every row of the request.
struct ResolvedAttention {
  AttentionMode mode = AttentionMode::kFull;
  std::shared_ptr<const ThresholdProfile> profile;
  AttentionOptions options;
  bool head_z = false;  // the profile's z per head applies, not options.z
  bool temper_special = false;
  std::optional<float> min_mass;
  Begin begin = Begin::kAsAsked;  // other than that with min_mass only

  // Makes it the setting of a sequence's rows, which then point into the profile.
  void ApplyTo(SequenceRows& rows) const {
    rows.attention = options;
    rows.frozen_thresholds = profile && !profile->relative_c ? profile->thresholds.data() : nullptr;
    rows.head_z = head_z ? profile->head_z.data() : nullptr;
  }
};

// Where drafts of the answer come from, which steps then verify: they change when tokens come,
// never which. kAuto: from where it makes the answer faster, if from anywhere, and never where the
// device does not compute verified rows to the bit as it computes single ones. kPrompt: from the
// text of prompt and answer. kSelf: from the model itself with sparser reads
// (batching/drafts/draft_attention.h), of a model with has_dynamic_thresholds().
enum class Speculation : uint8_t { kAuto, kOff, kPrompt, kSelf };

enum class Priority : uint8_t { kLow, kNormal, kHigh };

// What a request's tenant may have of the engine. Requests of one tenant name the same weight and
// limit. Where they differ, because they were just changed, those of the newest request hold.
struct TenantShare {
  static constexpr double kMinWeight = 0.01;
  static constexpr double kMaxWeight = 100.0;

  double weight = 1.0;        // tenants with work get tokens in proportion to it; clamped
  int64_t max_kv_tokens = 0;  // prompt and reserved answer of what runs, per device; 0: no limit
  // The most that its budget pays for prompt and answer of one request; 0: no limit. The engine
  // fits answers to it whose length nobody named, and refuses nothing for it.
  int64_t burst_tokens = 0;
};

struct Request {
  std::string id;  // 1 to 64 printable ASCII characters, no spaces; echoed
  // Whom slots and rows are divided between; empty is a tenant too. Prefixes are shared within a
  // tenant only, so that no tenant can feel another's prompts.
  std::string tenant;
  TenantShare share;
  std::variant<std::string, std::vector<int32_t>, Chat> prompt;  // UTF-8 text, token ids or a chat
  bool parse_special = false;  // special tokens that the text spells are those tokens; text only
  bool add_beginning = true;   // what begins the model's texts goes in front; text only
  // The prompt is its last so many tokens, at least 1; absent: all of them.
  std::optional<int32_t> keep_last;
  SamplingOptions sampling;
  StoppingOptions stopping;
  OutputOptions output;
  AttentionChoice attention;
  std::shared_ptr<const CompiledFormat> format;  // what the answer must be; null: free text
  // The prompt ends inside of reasoning, with which the answer goes on: Engine::Prepare sets it.
  bool in_reasoning = false;
  std::optional<Speculation> speculation;    // absent: as EngineOptions says
  Priority priority = Priority::kNormal;     // among requests of one tenant
  std::optional<Clock::time_point> arrival;  // of its call; absent: it comes when it is prepared
  // Absent, that is max(): limits.default_deadline after the arrival.
  Clock::time_point deadline = Clock::time_point::max();
};

// A token with its log-probability under the model (before bias, penalties and temperature) and the
// most probable alternatives, descending.
struct TokenDetail {
  int32_t id = 0;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
};

struct StartedEvent {
  std::string request_id;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, taken from shared blocks
  int32_t max_tokens = 0;     // of the answer
  uint64_t seed = 0;
  float rope_factor = 1.0f;     // over 1 when prompt and answer may pass the trained length
  float rope_theta = 0.0f;      // the base that goes with it; the checkpoint's own where it is 1
  ResolvedAttention attention;  // its `begin` is kAsAsked or kFull
};

// Prompt tokens done so far; sent while a prompt takes more than one step.
struct PrefillEvent {
  int32_t done = 0;
  int32_t total = 0;
  std::vector<TokenDetail> prompt_logprobs;  // of the prompt tokens just done, if asked for
};

struct DeltaEvent {
  std::string text;             // whole UTF-8 characters; may be empty
  std::vector<TextMark> marks;  // of output.marks, in the order of their places
  std::vector<int32_t> ids;
  std::vector<TokenDetail> logprobs;  // one per id, if asked for
};

// kCutOff: kLength, where the answer is not yet what its format asks for. Where a stop cuts such an
// answer short it stays kStopToken or kStopString, since the request asked for that end.
// kEndOfText: it is what its format asks for.
enum class FinishReason : uint8_t { kStopToken, kEndOfText, kStopString, kLength, kCutOff };

struct Timing {
  std::chrono::nanoseconds queue{0};        // submitted to first scheduled
  std::chrono::nanoseconds prefill{0};      // first scheduled to first token
  std::chrono::nanoseconds first_token{0};  // submitted to first token
  std::chrono::nanoseconds decode{0};       // first token to last
};

struct FinishedEvent {
  FinishReason reason = FinishReason::kLength;
  std::string matched_stop;           // kStopString
  std::optional<int32_t> matched_id;  // kStopToken, kEndOfText
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t output_tokens = 0;
  int32_t preemptions = 0;
  Timing timing;
  AttentionSums attention;
  DraftCounts drafts;
  std::vector<LayerDensity> layers;  // [L], means over its decode rows, if asked for
  // Gone full for want of mass or by wish (min_mass, begin): the index, from 0, of the first token
  // of the answer that was drawn with full attention.
  std::optional<int32_t> full_from;
};

// What each of some tokens reads as: a special one as the vocabulary spells it, others as the bytes
// that they add to a text, which are not always whole characters.
struct TokenReadings {
  std::string text;           // of one after the other
  std::vector<int32_t> ends;  // per token: where its own ends in `text`
  std::vector<bool> special;  // per token
};
struct Detokenized {
  std::string text;  // of all of them; bytes that make no character are U+FFFD
  TokenReadings tokens;
};

struct PreparedRequest;

// Receives the events of one request, in order, on the engine's step thread: Started (unless the
// request ended before it ran), any number of Prefill, then Deltas, then exactly one of Finished or
// Failed. Calls must not block.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void OnStarted(StartedEvent event) = 0;
  virtual void OnPrefill(PrefillEvent event) = 0;
  virtual void OnDelta(DeltaEvent event) = 0;
  virtual void OnFinished(FinishedEvent event) = 0;
  // The request ended without an answer; `so_far` counts what had been emitted.
  virtual void OnFailed(absl::Status status, FinishedEvent so_far) = 0;
  // True while too much waits to be sent: the request is paused, its batch mates are not.
  virtual bool Congested() const = 0;
  // The request has not started, and its engine cannot start it, since its device is lost. True: it
  // goes on elsewhere, with this sink, and the engine tells no more of it. False: OnFailed follows.
  virtual bool OnGivenBack(const PreparedRequest& /*request*/) { return false; }
};

}  // namespace eta
