// Any bytes as a Generate request: refused in a readable sentence, or within every limit that
// request.h states.
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/utf8.h"
#include "engine/chat/tools/call_object.h"
#include "engine/request/answers/format_validation.h"
#include "engine/request/chat_validation.h"
#include "engine/request/request_validation.h"
#include "eta/v1/generate.pb.h"
#include "service/generate/convert.h"
#include "service/generate/convert_format.h"
#include "service/wire/attention_message.h"
#include "tests/testing/fuzz/checked_error.h"
#include "tests/testing/fuzz/message_filler.h"

namespace {

using eta::fuzz::Require;

constexpr int32_t kVocabulary = 100;

// Of a plain model: with relative thresholds, or without. Its template shows tools if `relative` or
// `calls`, and writes calls in a form that is read if `calls`.
eta::EngineInfo Model(bool gated, bool relative, bool calls) {
  eta::EngineInfo info{};
  info.config.vocab_size = kVocabulary;
  info.config.num_layers = 2;
  info.config.num_query_heads = 4;
  info.config.num_kv_heads = 2;
  info.config.has_predictor = gated;
  info.config.gate = gated ? eta::Gate::kSilu : eta::Gate::kNone;
  if (relative) info.config.index = eta::IndexKind::kOutlier;
  if (gated) info.chat_refusal = "this model has no chat template";
  info.answer_form.shows_tools = relative || calls;
  if (calls) info.answer_form.calls = eta::CallSyntax::kTagged;
  return info;
}

// What the store could have under a name: any values, for this model or nearly so.
std::shared_ptr<const eta::ThresholdProfile> Stored(const std::string& name) {
  if (name.empty()) return nullptr;
  eta::fuzz::InputReader reader(reinterpret_cast<const uint8_t*>(name.data()), name.size());
  const auto maybe = [&reader] {
    return reader.Bool() ? std::optional(reader.Raw<float>()) : std::nullopt;
  };
  auto profile = std::make_shared<eta::ThresholdProfile>();
  profile->num_layers = reader.Bool() ? 3 : 2;
  profile->num_query_heads = 4;
  profile->thresholds.assign(static_cast<size_t>(8 + reader.Int(0, 1)), reader.Raw<float>());
  if (const auto z = maybe()) profile->head_z.assign(8, *z);
  profile->settings.offset = maybe();
  profile->settings.z = maybe();
  if (reader.Bool()) profile->settings.uniform_floor = reader.Bool();
  profile->relative_c = maybe();
  if (profile->relative_c && reader.Bool()) {
    profile->thresholds.clear();
    profile->head_z.clear();
  }
  profile->settings.min_mass = maybe();
  if (reader.Bool()) profile->settings.sink_blocks = reader.Raw<int32_t>();
  if (reader.Bool()) profile->settings.shared_reads = reader.Bool();
  if (reader.Bool()) profile->settings.temper_special = reader.Bool();
  if (reader.Bool()) profile->settings.confirm = reader.Bool();
  if (reader.Bool()) profile->settings.sparse_prefill = reader.Bool();
  return profile;
}

bool Within(float value, float low, float high) {
  return value >= low && value <= high;
}

bool AreIds(const std::vector<int32_t>& ids) {
  return std::all_of(ids.begin(), ids.end(),
                     [](int32_t id) { return id >= 0 && id < kVocabulary; });
}

void CheckChat(const eta::Chat& chat, const eta::Limits& limits) {
  Require(!chat.messages.empty() && chat.messages.size() <= eta::kMaxChatMessages);
  Require(eta::ChatBytes(chat) <= limits.max_prompt_bytes + (int64_t{64} << 10));
  const std::set<std::string> roles = {"system", "user", "assistant", "tool"};
  for (const eta::ChatMessage& message : chat.messages) {
    Require(roles.contains(message.role) && !eta::FirstInvalidUtf8(message.content));
    for (const auto& name : {message.name, message.tool_call_id}) {
      Require(!name || (name->size() <= 256 && !eta::FirstInvalidUtf8(*name)));
    }
    const bool is_answer = message.role == "assistant";
    Require(!message.reasoning ||
            (is_answer && !message.token_ids && !eta::FirstInvalidUtf8(*message.reasoning)));
    Require(message.tool_calls.empty() ||
            (is_answer && !message.token_ids && message.tool_calls.size() <= eta::kMaxToolCalls));
    for (const eta::ToolCall& call : message.tool_calls) {
      Require(!call.name.empty() && eta::AreArguments(call.arguments_json));
    }
    Require(!message.token_ids ||
            (is_answer && !message.token_ids->empty() && AreIds(*message.token_ids)));
  }
  Require(!eta::FirstInvalidUtf8(chat.variables_json));
  Require(chat.tools.size() <= eta::kMaxTools);
  Require(!chat.tools.empty() || (!chat.tool_choice && !chat.tool_to_call));
}

// What a client is told of its request reads as what was used.
void CheckTold(const eta::ResolvedAttention& resolved) {
  const eta::AttentionSettings used = eta::UsedSettings(resolved);
  eta::v1::AttentionUsed told;
  eta::WriteSettings(used, told);
  const auto read = eta::ReadSettings("", told);
  Require(read.ok() && *read == used);
  Require(eta::AsksOfSparseAttention(used) == (resolved.mode != eta::AttentionMode::kFull));
  Require(eta::Describe(used).size() >= eta::Describe(used, /*unusual=*/true).size());
  Require(!resolved.options.relative || eta::ReadByRelative(used).z == used.z);
  const int64_t rows = resolved.options.pinned_blocks;
  const eta::AttentionSums sums = {.decode_rows = rows,
                                   .head_density_sum = static_cast<double>(rows),
                                   .prefill_rows = resolved.options.sink_blocks,
                                   .shadow_row_layers = rows};
  const eta::v1::AttentionStats stats = eta::ToMessage(sums);
  Require(stats.decode_steps() == rows && stats.head_density() == (rows > 0 ? 1.0 : 0.0));
}

void CheckFormat(const eta::v1::AnswerFormat& message) {
  const auto format = eta::ToFormat(message);
  if (!format.ok()) return eta::fuzz::RequireReadable(format.status());
  if (const absl::Status status = eta::ValidateFormat(*format); !status.ok()) {
    return eta::fuzz::RequireReadable(status);
  }
  const bool has_source = format->kind != eta::AnswerFormatKind::kJsonObject &&
                          format->kind != eta::AnswerFormatKind::kChoice;
  Require(format->source.empty() != has_source && !eta::FirstInvalidUtf8(format->source));
  Require(format->choices.empty() == (format->kind != eta::AnswerFormatKind::kChoice));
  Require(format->choices.size() <= eta::kMostChoices);
  Require(eta::FormatBytes(*format) <= int64_t{eta::kMostFormatBytes});
  std::set<std::string> seen;
  for (const std::string& choice : format->choices) {
    Require(!choice.empty() && !eta::FirstInvalidUtf8(choice) && seen.insert(choice).second);
  }
  Require(!eta::Name(format->kind).empty());
}

void CheckAccepted(const eta::Request& request, const eta::EngineInfo& model,
                   const eta::Limits& limits) {
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    Require(!text->empty() && static_cast<int64_t>(text->size()) <= limits.max_prompt_bytes);
    Require(!eta::FirstInvalidUtf8(*text));
  } else if (const auto* chat = std::get_if<eta::Chat>(&request.prompt)) {
    CheckChat(*chat, limits);
    Require(!request.parse_special && model.chat_refusal.empty());
  } else {
    const auto& ids = std::get<std::vector<int32_t>>(request.prompt);
    Require(!ids.empty() && AreIds(ids) && !request.parse_special);
  }
  const eta::SamplingOptions& sampling = request.sampling;
  Require(Within(sampling.temperature, 0, 2) && sampling.top_k >= 0);
  Require(sampling.top_p > 0 && sampling.top_p <= 1 && Within(sampling.min_p, 0, 1));
  Require(sampling.repetition_penalty > 0 && sampling.repetition_penalty <= 10);
  Require(Within(sampling.presence_penalty, -2, 2) && Within(sampling.frequency_penalty, -2, 2));
  Require(sampling.bias.size() <= 256);
  std::set<int32_t> biased;
  for (const eta::LogitBias& bias : sampling.bias) {
    Require(bias.id >= 0 && bias.id < kVocabulary && Within(bias.bias, -100, 100));
    Require(biased.insert(bias.id).second);
  }
  const eta::StoppingOptions& stopping = request.stopping;
  Require(stopping.max_tokens >= 1 && stopping.max_tokens <= limits.max_output_tokens);
  Require(stopping.min_tokens >= 0 && stopping.min_tokens <= stopping.max_tokens);
  Require(stopping.stop_strings.size() <= 4 && stopping.stop_ids.size() <= 16);
  for (const std::string& stop : stopping.stop_strings) {
    Require(!stop.empty() && stop.size() <= 64 && !eta::FirstInvalidUtf8(stop));
  }
  Require(AreIds(stopping.stop_ids));
  Require(request.output.logprobs.value_or(0) >= 0 && request.output.logprobs.value_or(0) <= 20);
  Require(request.output.prompt_logprobs.value_or(0) >= 0 &&
          request.output.prompt_logprobs.value_or(0) <= 20);
  Require(eta::IsRequestId(request.id));
  Require(request.speculation != eta::Speculation::kSelf || model.config.has_dynamic_thresholds());
  const eta::ResolvedAttention resolved = eta::ResolveAttention(request.attention, model.config);
  Require(std::isfinite(resolved.options.offset) && Within(resolved.options.z, 0, 16));
  Require(resolved.options.pinned_blocks >= 0 && resolved.options.pinned_blocks <= 1024);
  Require(resolved.options.sink_blocks >= 0 && resolved.options.sink_blocks <= 1024);
  Require(!resolved.options.relative ||
          (model.config.has_relative_thresholds() && std::isfinite(resolved.options.relative_c)));
  Require(resolved.options.relative || resolved.options.admit_all || model.config.has_predictor);
  Require(!resolved.temper_special || model.config.gate != eta::Gate::kNone);
  Require(!resolved.min_mass || (*resolved.min_mass > 0 && *resolved.min_mass <= 1));
  Require(!resolved.options.admit_all || !resolved.min_mass);
  Require(resolved.begin == eta::Begin::kAsAsked || resolved.min_mass);
  Require(!resolved.options.uniform_floor || model.config.gate != eta::Gate::kNone);
  Require((resolved.profile != nullptr) == (resolved.mode == eta::AttentionMode::kProfile));
  CheckTold(resolved);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<eta::EngineInfo> models = [] {
    std::vector<eta::EngineInfo> all;
    for (const bool calls : {false, true}) {
      for (const bool relative : {false, true}) {
        for (const bool gated : {false, true}) all.push_back(Model(gated, relative, calls));
      }
    }
    return all;
  }();
  eta::fuzz::InputReader reader(data, size);
  const eta::EngineInfo& model = models[reader.Byte() & 7];
  eta::v1::GenerateRequest message;
  if (!eta::fuzz::ReadMessage(reader, message)) return 0;
  if (message.has_format()) CheckFormat(message.format());

  auto request = eta::ToRequest(message);
  if (!request.ok()) {
    eta::fuzz::RequireReadable(request.status());
    return 0;
  }
  if (message.request_id().empty()) request->id = "drawn";
  if (request->attention.mode == eta::AttentionMode::kProfile) {
    request->attention.profile = Stored(message.attention().profile());
  }
  const eta::Limits limits;
  if (const absl::Status status = eta::ValidateRequest(*request, model, limits); status.ok()) {
    CheckAccepted(*request, model, limits);
  } else {
    eta::fuzz::RequireReadable(status);
  }
  for (const absl::Status& status :
       {eta::RequireIdsOnly(*request), eta::ValidateText(message.text(), limits),
        eta::ValidateAttention(request->attention, model), eta::NoTextError(),
        eta::CheckContext(request->sampling.top_k, request->stopping.max_tokens, limits)}) {
    if (!status.ok()) eta::fuzz::RequireReadable(status);
  }
  return 0;
}
