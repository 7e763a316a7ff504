// lint: untrusted-input, fuzz-covered
#include "service/vllm/convert_vllm.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/request/answers/format_validation.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

constexpr size_t kMaxVllmIdBytes = 256;
constexpr char kSampling[] = "sampling_params.";

// Numbers past the range stay past every limit.
int32_t Saturated(uint32_t value) {
  return static_cast<int32_t>(
      std::min(value, static_cast<uint32_t>(std::numeric_limits<int32_t>::max())));
}

absl::Status RefuseVllm(const std::string& field, const std::string& what) {
  return InvalidField(field, absl::StrCat("this server has no ", what));
}

absl::Status CheckVllmId(const std::string& id) {
  if (IsPrintable(id) && id.size() <= kMaxVllmIdBytes) return absl::OkStatus();
  return InvalidField("request_id",
                      absl::StrCat("must be at most ", kMaxVllmIdBytes,
                                   " visible ASCII characters, since it stands in logs"));
}

// What is not done here, and would change the answer.
absl::Status RefuseVllmExtras(const vllm_pb::GenerateRequest& message) {
  if (message.has_mm_inputs()) return RefuseVllm("mm_inputs", "multimodal models");
  if (message.extra_mm_inputs_size() > 0) return RefuseVllm("extra_mm_inputs", "multimodal models");
  if (message.has_media_refs()) return RefuseVllm("media_refs", "multimodal models");
  if (message.has_kv_transfer_params()) return RefuseVllm("kv_transfer_params", "KV transfer");
  if (message.has_kv_transfer_params_json()) {
    return RefuseVllm("kv_transfer_params_json", "KV transfer");
  }
  if (message.data_parallel_rank() != 0) {
    return InvalidField("data_parallel_rank",
                        "must be 0: requests find their device by themselves");
  }
  return absl::OkStatus();
}

absl::Status ConvertConstraint(const vllm_pb::SamplingParams& in,
                               std::optional<AnswerFormat>& out) {
  switch (in.constraint_case()) {
    case vllm_pb::SamplingParams::kJsonSchema:
      out = AnswerFormat{.kind = AnswerFormatKind::kJsonSchema, .source = in.json_schema()};
      break;
    case vllm_pb::SamplingParams::kRegex:
      out = AnswerFormat{.kind = AnswerFormatKind::kRegex, .source = in.regex()};
      break;
    case vllm_pb::SamplingParams::kGrammar:
      out = AnswerFormat{.kind = AnswerFormatKind::kGrammar, .source = in.grammar()};
      break;
    case vllm_pb::SamplingParams::kStructuralTag:
      out = AnswerFormat{.kind = AnswerFormatKind::kStructuralTag, .source = in.structural_tag()};
      break;
    case vllm_pb::SamplingParams::kJsonObject:
      if (in.json_object()) out = AnswerFormat{.kind = AnswerFormatKind::kJsonObject};
      break;
    case vllm_pb::SamplingParams::kChoice: {
      const auto& choices = in.choice().choices();
      RETURN_IF_ERROR(
          InVllmFields(CheckChoiceCount(static_cast<size_t>(choices.size())), SamplingOptions()));
      out = AnswerFormat{.kind = AnswerFormatKind::kChoice,
                         .choices = {choices.begin(), choices.end()}};
      break;
    }
    case vllm_pb::SamplingParams::CONSTRAINT_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

void ConvertSampling(const vllm_pb::SamplingParams& in, SamplingOptions& out) {
  if (in.has_temperature()) out.temperature = in.temperature();
  if (in.top_p() != 0.0f) out.top_p = in.top_p();
  out.top_k = Saturated(in.top_k());
  out.min_p = in.min_p();
  if (in.repetition_penalty() != 0.0f) out.repetition_penalty = in.repetition_penalty();
  out.presence_penalty = in.presence_penalty();
  out.frequency_penalty = in.frequency_penalty();
  constexpr int32_t kDrawn = -1;
  if (in.has_seed() && in.seed() != kDrawn) out.seed = static_cast<uint64_t>(int64_t{in.seed()});
  out.bias.reserve(in.logit_bias().size());
  for (const auto& [id, bias] : in.logit_bias()) out.bias.push_back({id, bias});
  std::sort(out.bias.begin(), out.bias.end(),
            [](const LogitBias& a, const LogitBias& b) { return a.id < b.id; });
}

void ConvertStopping(const vllm_pb::SamplingParams& in, int32_t most_tokens, StoppingOptions& out) {
  out.fit_max_tokens = !in.has_max_tokens();
  out.max_tokens = in.has_max_tokens() ? Saturated(in.max_tokens()) : most_tokens;
  out.min_tokens = Saturated(in.min_tokens());
  out.stop_strings.assign(in.stop().begin(), in.stop().end());
  out.stop_ids.reserve(in.stop_token_ids().size());
  for (const uint32_t id : in.stop_token_ids()) out.stop_ids.push_back(Saturated(id));
  out.ignore_eos = in.ignore_eos();
}

void ConvertOutput(const vllm_pb::SamplingParams& in, OutputOptions& out) {
  out.text = false;
  out.ids = true;
  out.end_id = true;
  if (in.has_logprobs()) out.logprobs = in.logprobs();
  if (in.has_prompt_logprobs()) out.prompt_logprobs = in.prompt_logprobs();
  out.special_tokens = !in.skip_special_tokens();
}

absl::Status ConvertPrompt(const vllm_pb::GenerateRequest& message, Request& out) {
  switch (message.input_case()) {
    case vllm_pb::GenerateRequest::kTokenized: {
      std::vector<int32_t> ids;
      ids.reserve(message.tokenized().input_ids_size());
      for (const uint32_t id : message.tokenized().input_ids()) ids.push_back(Saturated(id));
      out.prompt = std::move(ids);
      return absl::OkStatus();
    }
    case vllm_pb::GenerateRequest::kText:
      out.prompt = message.text();
      out.parse_special = true;
      return absl::OkStatus();
    case vllm_pb::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return InvalidField("input", "one of tokenized and text must be set");
}

absl::Status ConvertTruncation(const vllm_pb::SamplingParams& in, const Limits& limits,
                               Request& out) {
  if (!in.has_truncate_prompt_tokens()) return absl::OkStatus();
  constexpr int32_t kFillContext = -1;
  const int32_t asked = in.truncate_prompt_tokens();
  if (asked < kFillContext || asked == 0) {
    return InvalidField(absl::StrCat(kSampling, "truncate_prompt_tokens"),
                        "must be -1, or at least 1");
  }
  out.keep_last = asked;
  if (asked != kFillContext) return absl::OkStatus();
  const int64_t left = int64_t{limits.max_context} - out.stopping.least_tokens();
  out.keep_last = static_cast<int32_t>(std::max<int64_t>(left, 1));
  return absl::OkStatus();
}

void AddTop(const TokenDetail& token,
            google::protobuf::RepeatedPtrField<vllm_pb::TopLogProbs>& out) {
  vllm_pb::TopLogProbs& top = *out.Add();
  for (const TokenLogprob& one : token.top) {
    top.add_values(one.logprob);
    top.add_token_ids(static_cast<uint32_t>(one.id));
  }
}

// The path in that API of a field as the engine names it.
std::string VllmField(const std::string& field, const SamplingOptions& sampling) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"token_ids.ids", "tokenized.input_ids"},
      {"token_ids", "tokenized.input_ids"},
      {"stopping.stop_strings", "sampling_params.stop"},
      {"stopping.", kSampling},
      {"sampling.", kSampling},
      {"output.", kSampling},
      {"format.", kSampling},
      {"format", "sampling_params"},
  };
  static constexpr std::string_view kBias = "sampling.logit_bias[";
  size_t place = 0;
  if (field.starts_with(kBias) &&
      absl::SimpleAtoi(field.substr(kBias.size(), field.find(']') - kBias.size()), &place) &&
      place < sampling.bias.size()) {
    return absl::StrCat(kSampling, "logit_bias[", sampling.bias[place].id, "]");
  }
  if (field.starts_with("attention.")) return kAttentionKey;
  for (const auto& [ours, theirs] : kNames) {
    if (field.starts_with(ours)) return std::string(theirs) + field.substr(ours.size());
  }
  return field;
}

}  // namespace

absl::StatusOr<VllmRequest> ToRequest(const vllm_pb::GenerateRequest& message, const Limits& limits,
                                      int32_t most_tokens) {
  const vllm_pb::SamplingParams& params = message.sampling_params();
  RETURN_IF_ERROR(CheckVllmId(message.request_id()));
  RETURN_IF_ERROR(RefuseVllmExtras(message));
  VllmRequest out{.stream = message.stream()};
  RETURN_IF_ERROR(ConvertConstraint(params, out.format));
  out.answers = std::max(1, Saturated(params.n()));
  if (out.answers > kMaxAnswers) {
    return InvalidField(absl::StrCat(kSampling, "n"), absl::StrCat("must be 0 to ", kMaxAnswers));
  }
  RETURN_IF_ERROR(ConvertPrompt(message, out.request));
  ConvertSampling(params, out.request.sampling);
  ConvertStopping(params, most_tokens, out.request.stopping);
  ConvertOutput(params, out.request.output);
  RETURN_IF_ERROR(ConvertTruncation(params, limits, out.request));
  return out;
}

absl::Status InVllmFields(const absl::Status& status, const SamplingOptions& sampling) {
  ErrorDetail detail = GetErrorDetail(status);
  if (detail.field.empty()) return status;
  const std::string named = detail.field + ": ";
  std::string sentence(status.message());
  detail.field = VllmField(detail.field, sampling);
  if (sentence.starts_with(named)) sentence.replace(0, named.size(), detail.field + ": ");
  return MakeError(status.code(), sentence, std::move(detail));
}

void AppendTokens(const DeltaEvent& event, const OutputOptions& options,
                  google::protobuf::RepeatedField<uint32_t>& ids,
                  vllm_pb::OutputLogProbs* logprobs) {
  for (const int32_t id : event.ids) ids.Add(static_cast<uint32_t>(id));
  if (!options.logprobs || logprobs == nullptr) return;
  for (const TokenDetail& token : event.logprobs) {
    logprobs->add_token_logprobs(token.logprob);
    logprobs->add_token_ids(static_cast<uint32_t>(token.id));
    if (*options.logprobs > 0) AddTop(token, *logprobs->mutable_top_logprobs());
  }
}

void AppendPrompt(std::span<const TokenDetail> details, const OutputOptions& options,
                  int32_t first_id, vllm_pb::InputLogProbs& logprobs) {
  const bool tops = options.prompt_logprobs.value_or(0) > 0;
  if (logprobs.token_ids_size() == 0) {
    logprobs.add_token_logprobs();
    logprobs.add_token_ids(static_cast<uint32_t>(first_id));
    if (tops) logprobs.add_top_logprobs();
  }
  for (const TokenDetail& token : details) {
    logprobs.add_token_logprobs()->set_value(token.logprob);
    logprobs.add_token_ids(static_cast<uint32_t>(token.id));
    if (tops) AddTop(token, *logprobs.mutable_top_logprobs());
  }
}

void SetEnd(const FinishedEvent& event, vllm_pb::GenerateComplete& complete) {
  const bool full = event.reason == FinishReason::kLength || event.reason == FinishReason::kCutOff;
  complete.set_finish_reason(full ? "length" : "stop");
  if (event.reason == FinishReason::kStopString) complete.set_matched_stop_str(event.matched_stop);
  if (event.reason == FinishReason::kStopToken && event.matched_id) {
    complete.set_matched_token_id(static_cast<uint32_t>(*event.matched_id));
  }
  complete.set_prompt_tokens(static_cast<uint32_t>(event.prompt_tokens));
  complete.set_completion_tokens(static_cast<uint32_t>(event.output_tokens));
  complete.set_cached_tokens(static_cast<uint32_t>(event.cached_tokens));
  complete.set_spec_accepted_tokens(static_cast<uint32_t>(event.drafts.accepted));
  complete.set_spec_draft_tokens(static_cast<uint32_t>(event.drafts.drafted));
}

bool Merge(vllm_pb::GenerateResponse& last, const vllm_pb::GenerateResponse& next) {
  if (!last.has_chunk() || !next.has_chunk()) return false;
  vllm_pb::GenerateStreamChunk& into = *last.mutable_chunk();
  const vllm_pb::GenerateStreamChunk& from = next.chunk();
  if (into.index() != from.index() || from.has_input_logprobs()) return false;
  into.mutable_token_ids()->MergeFrom(from.token_ids());
  into.set_completion_tokens(into.completion_tokens() + from.completion_tokens());
  if (from.has_output_logprobs()) into.mutable_output_logprobs()->MergeFrom(from.output_logprobs());
  return true;
}

}  // namespace eta
