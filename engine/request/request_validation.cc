// lint: untrusted-input, fuzz-covered
#include "engine/request/request_validation.h"

#include <algorithm>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/request/answers/tool_validation.h"
#include "engine/request/chat_validation.h"
#include "engine/request/profile_validation.h"

namespace eta {
namespace {

constexpr size_t kMaxRequestIdBytes = 64;
constexpr size_t kMaxLogitBias = 256;
constexpr size_t kMaxStopStrings = 4;
constexpr size_t kMaxStopStringBytes = 64;
constexpr size_t kMaxStopIds = 16;
constexpr int32_t kMaxLogprobs = 20;
constexpr float kMaxLogitBiasValue = 100.0f;
constexpr float kGatedZ = 1.5f;  // with the uniform floor
constexpr float kPlainZ = 2.0f;  // without: the paper's
constexpr char kIdsOnly[] =
    "this model came without a tokenizer (tokenizer.json or tokenizer.model)";

std::string Element(const std::string& field, size_t i) {
  return absl::StrCat(field, "[", i, "]");
}

// Keeps the first violation; later checks then cost nothing. NaN is outside every range.
class Checker {
 public:
  void Require(bool holds, const std::string& field, const std::string& sentence) {
    if (status_.ok() && !holds) status_ = InvalidField(field, sentence);
  }
  void Range(float value, float low, float high, const std::string& field) {
    if (value >= low && value <= high) return;
    Require(false, field, absl::StrCat("must be ", low, " to ", high));
  }
  void AboveZero(float value, float high, const std::string& field) {
    if (value > 0.0f && value <= high) return;
    Require(false, field, absl::StrCat("must be greater than 0 and at most ", high));
  }
  void Range(int64_t value, int64_t low, int64_t high, const std::string& field) {
    if (value >= low && value <= high) return;
    Require(false, field, absl::StrCat("must be ", low, " to ", high));
  }
  void AtMost(size_t count, size_t limit, const std::string& field, const std::string& unit) {
    if (count <= limit) return;
    Require(false, field, absl::StrCat("at most ", limit, " ", unit));
  }
  // What the model cannot do.
  void Precondition(bool holds, const std::string& field, const std::string& sentence) {
    if (status_.ok() && !holds) status_ = UnsupportedByModel(field, sentence);
  }

  bool ok() const { return status_.ok(); }
  void Set(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  absl::Status Release() { return std::move(status_); }

 private:
  absl::Status status_;
};

void CheckText(std::string_view text, const Limits& limits, Checker& check) {
  check.Require(!text.empty(), "text", "must not be empty");
  check.AtMost(text.size(), static_cast<size_t>(limits.max_prompt_bytes), "text", "bytes");
  if (!check.ok()) return;
  check.Set(CheckUtf8Field("text", text));
}

void CheckChat(const Chat& chat, const EngineInfo& model, const Limits& limits, Checker& check) {
  if (check.ok()) check.Set(ValidateChat(chat, limits));
  for (size_t i = 0; i < chat.messages.size() && check.ok(); ++i) {
    if (!chat.messages[i].token_ids) continue;
    check.Set(CheckTokenIds(Element("chat.messages", i) + ".token_ids.ids",
                            *chat.messages[i].token_ids, model.config.vocab_size));
  }
  if (model.chat_refusal.empty()) return check.Set(CheckToolsOfModel(chat, model.answer_form));
  check.Set(MakeError(absl::StatusCode::kFailedPrecondition,
                      absl::StrCat("chat: send text or token_ids: ", model.chat_refusal),
                      {.reason = "CHAT_UNSUPPORTED"}));
}

void CheckPrompt(const Request& request, const EngineInfo& model, const Limits& limits,
                 Checker& check) {
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    CheckText(*text, limits, check);
    return;
  }
  if (const auto* chat = std::get_if<Chat>(&request.prompt)) {
    check.Require(!request.parse_special, "parse_special",
                  "is for text: a chat's special tokens are its template's");
    check.Require(request.add_beginning, "add_beginning",
                  "is for text: what begins a chat is its template's");
    CheckChat(*chat, model, limits, check);
    return;
  }
  const auto& ids = std::get<std::vector<int32_t>>(request.prompt);
  check.Require(!request.parse_special, "parse_special",
                "is for text: token_ids are taken as they are");
  check.Require(!ids.empty(), "token_ids.ids", "must not be empty");
  check.Set(CheckTokenIds("token_ids.ids", ids, model.config.vocab_size));
}

void CheckSampling(const SamplingOptions& sampling, const ModelConfig& config, Checker& check) {
  check.Range(sampling.temperature, 0.0f, 2.0f, "sampling.temperature");
  check.Require(sampling.top_k >= 0, "sampling.top_k", "must not be negative");
  check.AboveZero(sampling.top_p, 1.0f, "sampling.top_p");
  check.Range(sampling.min_p, 0.0f, 1.0f, "sampling.min_p");
  check.AboveZero(sampling.repetition_penalty, 10.0f, "sampling.repetition_penalty");
  check.Range(sampling.presence_penalty, -2.0f, 2.0f, "sampling.presence_penalty");
  check.Range(sampling.frequency_penalty, -2.0f, 2.0f, "sampling.frequency_penalty");
  check.AtMost(sampling.bias.size(), kMaxLogitBias, "sampling.logit_bias", "entries");
  if (!check.ok()) return;
  std::unordered_set<int32_t> seen;
  for (size_t i = 0; i < sampling.bias.size() && check.ok(); ++i) {
    const LogitBias& bias = sampling.bias[i];
    const std::string field = Element("sampling.logit_bias", i);
    check.Range(int64_t{bias.id}, 0, int64_t{config.vocab_size} - 1, field + ".token_id");
    check.Range(bias.bias, -kMaxLogitBiasValue, kMaxLogitBiasValue, field + ".bias");
    check.Require(seen.insert(bias.id).second, field + ".token_id", "occurs more than once");
  }
}

void CheckStopping(const StoppingOptions& stopping, const ModelConfig& config, const Limits& limits,
                   Checker& check) {
  const int32_t max_tokens = stopping.fit_max_tokens
                                 ? std::min(stopping.max_tokens, limits.max_output_tokens)
                                 : stopping.max_tokens;
  check.Range(int64_t{max_tokens}, 1, limits.max_output_tokens, "stopping.max_tokens");
  check.Range(int64_t{stopping.min_tokens}, 0, max_tokens, "stopping.min_tokens");
  check.AtMost(stopping.stop_strings.size(), kMaxStopStrings, "stopping.stop_strings", "strings");
  check.AtMost(stopping.stop_ids.size(), kMaxStopIds, "stopping.stop_token_ids", "ids");
  if (!check.ok()) return;
  for (size_t i = 0; i < stopping.stop_strings.size(); ++i) {
    const std::string& stop = stopping.stop_strings[i];
    const std::string field = Element("stopping.stop_strings", i);
    check.Require(!stop.empty(), field, "must not be empty");
    check.AtMost(stop.size(), kMaxStopStringBytes, field, "bytes");
    check.Require(!FirstInvalidUtf8(stop), field, "is not UTF-8");
  }
  check.Set(CheckTokenIds("stopping.stop_token_ids", stopping.stop_ids, config.vocab_size));
}

void CheckOutput(const OutputOptions& output, Checker& check) {
  check.Range(int64_t{output.logprobs.value_or(0)}, 0, kMaxLogprobs, "output.logprobs");
  check.Range(int64_t{output.prompt_logprobs.value_or(0)}, 0, kMaxLogprobs,
              "output.prompt_logprobs");
}

AttentionMode ModeOf(const AttentionChoice& choice, const ModelConfig& config) {
  return choice.mode.value_or(config.has_dynamic_thresholds() ? AttentionMode::kDynamic
                                                              : AttentionMode::kFull);
}

// What a request says, or else its profile, if it runs with one.
AttentionSettings SettingsOf(const AttentionChoice& choice, const ModelConfig& config) {
  const bool profile = ModeOf(choice, config) == AttentionMode::kProfile && choice.profile;
  return profile ? choice.settings.Or(choice.profile->settings) : choice.settings;
}

// There is nothing to choose where every layer attends to all that its window shows.
void CheckWindowsAlone(const AttentionChoice& choice, const ModelConfig& config, Checker& check) {
  const std::string sentence = absl::StrCat(
      "no layer of this model reads this: all see a window of ", config.sliding_window, " tokens");
  const AttentionMode mode = choice.mode.value_or(AttentionMode::kFull);
  check.Require(mode != AttentionMode::kDynamic, "attention.dynamic", sentence);
  check.Require(mode != AttentionMode::kProfile, "attention.profile", sentence);
  ForEachSetting([&](const AttentionField& field, auto member) {
    check.Require(!(choice.settings.*member), absl::StrCat("attention.", field.name), sentence);
  });
  check.Require(!choice.begin, "attention.begin", sentence);
}

void CheckAttention(const AttentionChoice& choice, const EngineInfo& model, Checker& check) {
  const ModelConfig& config = model.config;
  check.Set(CheckBounds("attention.", choice.settings));
  if (!config.HasFullLayers()) return CheckWindowsAlone(choice, config, check);
  switch (ModeOf(choice, config)) {
    case AttentionMode::kFull: {
      const std::string sentence = "full attention prunes nothing and does not read this";
      ForEachSetting([&](const AttentionField& field, auto member) {
        check.Require(field.full_reads || !(choice.settings.*member),
                      absl::StrCat("attention.", field.name), sentence);
      });
      check.Require(!choice.begin, "attention.begin", sentence);
      check.Require(config.gate != Gate::kNone || !choice.settings.offset, "attention.offset",
                    "full attention of a model without a gate does not read this");
      break;
    }
    case AttentionMode::kDynamic:
      check.Precondition(config.has_dynamic_thresholds(), "attention.dynamic",
                         "this model predicts no thresholds, and relative ones "
                         "need an index of kind outlier (--index=outlier)");
      break;
    case AttentionMode::kProfile:
      check.Require(choice.profile != nullptr, "attention.profile", "must name a profile");
      if (check.ok()) check.Set(ValidateProfile(*choice.profile, model));
      break;
  }
  const bool full = ModeOf(choice, config) == AttentionMode::kFull;
  const AttentionSettings settings = SettingsOf(choice, config);
  check.Require(full || !choice.begin || settings.min_mass, "attention.begin",
                "needs a min_mass, the request's own or its profile's");
  check.Require(full || !config.has_relative_thresholds() || !choice.settings.z, "attention.z",
                "relative thresholds do not read this");
  if (config.gate == Gate::kNone) check.Set(RefuseGated("attention.", settings));
}

}  // namespace

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

bool IsRequestId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestIdBytes && IsPrintable(id);
}

absl::Status CheckRequestId(const std::string& field, std::string_view id) {
  if (IsRequestId(id)) return absl::OkStatus();
  return InvalidField(field,
                      "must be 1 to 64 printable ASCII characters without spaces, since it is sent "
                      "back as a header and stands in logs");
}

absl::Status ValidateRequest(const Request& request, const EngineInfo& model,
                             const Limits& limits) {
  const ModelConfig& config = model.config;
  Checker check;
  check.Set(CheckRequestId("request_id", request.id));
  CheckPrompt(request, model, limits, check);
  check.Require(request.keep_last.value_or(1) >= 1, "keep_last", "must be at least 1");
  CheckSampling(request.sampling, config, check);
  CheckStopping(request.stopping, config, limits, check);
  CheckOutput(request.output, check);
  CheckAttention(request.attention, model, check);
  if (request.speculation) check.Set(CheckSpeculation(*request.speculation, config));
  return check.Release();
}

absl::Status CheckSpeculation(Speculation speculation, const ModelConfig& config) {
  if (speculation != Speculation::kSelf || config.has_dynamic_thresholds()) {
    return absl::OkStatus();
  }
  return UnsupportedByModel("speculation",
                            "this model makes no drafts by sparser reads (self), since no row of "
                            "it selects blocks; prompt drafts from the text, as does auto");
}

absl::Status ValidateAttention(const AttentionChoice& choice, const EngineInfo& model) {
  Checker check;
  CheckAttention(choice, model, check);
  return check.Release();
}

absl::Status ValidateText(std::string_view text, const Limits& limits) {
  Checker check;
  CheckText(text, limits, check);
  return check.Release();
}

absl::Status ValidateTokenIds(std::span<const int32_t> ids, const EngineInfo& model,
                              const Limits& limits) {
  Checker check;
  check.Require(!ids.empty(), "token_ids.ids", "must not be empty");
  check.AtMost(ids.size(), static_cast<size_t>(limits.max_context), "token_ids.ids", "ids");
  if (check.ok()) check.Set(CheckTokenIds("token_ids.ids", ids, model.config.vocab_size));
  return check.Release();
}

std::optional<size_t> FirstOutside(std::span<const int32_t> ids, int32_t vocab_size) {
  const auto bad =
      std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= vocab_size; });
  if (bad == ids.end()) return std::nullopt;
  return static_cast<size_t>(bad - ids.begin());
}

absl::Status CheckTokenIds(const std::string& field, std::span<const int32_t> ids,
                           int32_t vocab_size) {
  const std::optional<size_t> bad = FirstOutside(ids, vocab_size);
  if (!bad) return absl::OkStatus();
  return InvalidField(Element(field, *bad), absl::StrCat("must be 0 to ", vocab_size - 1));
}

absl::Status NoTextError() {
  return UnsupportedByModel("text", absl::StrCat("send token ids: ", kIdsOnly));
}

absl::Status RequireIdsOnly(const Request& request) {
  const std::string why = kIdsOnly;
  Checker check;
  check.Precondition(std::holds_alternative<std::vector<int32_t>>(request.prompt), "text",
                     absl::StrCat("send token_ids: ", why));
  check.Precondition(request.stopping.stop_strings.empty(), "stopping.stop_strings",
                     absl::StrCat("use stop_token_ids: ", why));
  check.Precondition(request.output.ids, "output.token_ids",
                     absl::StrCat("must be true, answers have no text: ", why));
  return check.Release();
}

int64_t LeastTokens(size_t text_bytes, const EngineInfo& model) {
  if (model.max_token_bytes == 0) return 1;
  return static_cast<int64_t>((text_bytes - 1) / model.max_token_bytes + 1);
}

absl::Status CheckContext(int64_t prompt_tokens, int64_t max_tokens, const Limits& limits,
                          bool at_least) {
  if (prompt_tokens >= 0 && max_tokens >= 0 && prompt_tokens <= limits.max_context &&
      max_tokens <= limits.max_context - prompt_tokens) {
    return absl::OkStatus();
  }
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat("stopping.max_tokens: ", at_least ? "at least " : "", prompt_tokens,
                   " prompt tokens and ", max_tokens,
                   " max_tokens together pass the context limit of ", limits.max_context),
      {.reason = "CONTEXT_TOO_LONG",
       .field = "stopping.max_tokens",
       .metadata = {{"prompt_tokens", absl::StrCat(prompt_tokens)},
                    {"max_tokens", absl::StrCat(max_tokens)},
                    {"max_context", absl::StrCat(limits.max_context)}}});
}

ResolvedAttention ResolveAttention(const AttentionChoice& choice, const ModelConfig& config) {
  ResolvedAttention resolved;
  resolved.mode = ModeOf(choice, config);
  if (resolved.mode == AttentionMode::kProfile) resolved.profile = choice.profile;
  const AttentionSettings asked = SettingsOf(choice, config);
  resolved.temper_special = asked.temper_special.value_or(config.temper_special);
  AttentionOptions& options = resolved.options;
  if (resolved.mode == AttentionMode::kFull) {
    options.offset = asked.offset.value_or(0.0f);
    options.admit_all = true;
    options.uniform_floor = false;
    return resolved;
  }
  options.uniform_floor = asked.uniform_floor.value_or(config.gate == Gate::kSilu);
  options.z = options.uniform_floor ? kGatedZ : kPlainZ;
  options.sink_blocks = config.sink_blocks;
  options.shared_reads = config.shared_reads;
  ForEachOption([&](auto option, auto setting) {
    if (asked.*setting) options.*option = *(asked.*setting);
  });
  resolved.head_z =
      !choice.settings.z && resolved.profile != nullptr && !resolved.profile->head_z.empty();
  options.relative = config.has_relative_thresholds();
  if (resolved.profile && resolved.profile->relative_c)
    options.relative_c = *resolved.profile->relative_c;
  resolved.min_mass = asked.min_mass;
  resolved.begin = choice.begin.value_or(Begin::kAsAsked);
  return resolved;
}

AttentionSettings UsedSettings(const ResolvedAttention& resolved) {
  const AttentionOptions& options = resolved.options;
  AttentionSettings used = {.offset = options.offset, .temper_special = resolved.temper_special};
  if (resolved.mode == AttentionMode::kFull) return used;
  ForEachOption([&](auto option, auto setting) { used.*setting = options.*option; });
  if (options.relative || resolved.head_z) used.z.reset();
  used.min_mass = resolved.min_mass;
  return used;
}

}  // namespace eta
