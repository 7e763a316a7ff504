// lint: untrusted-input
#include "service/generate/convert.h"

#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/request/profile_validation.h"
#include "engine/request/request_validation.h"
#include "service/generate/answer_plan.h"
#include "service/generate/convert_chat.h"
#include "service/wire/attention_message.h"
#include "service/wire/draft_message.h"

namespace eta {
namespace {

absl::Status Convert(const v1::SamplingParams& in, SamplingOptions& out) {
  if (in.has_temperature()) out.temperature = in.temperature();
  if (in.has_top_k()) out.top_k = in.top_k();
  if (in.has_top_p()) out.top_p = in.top_p();
  if (in.has_min_p()) out.min_p = in.min_p();
  if (in.has_repetition_penalty()) out.repetition_penalty = in.repetition_penalty();
  if (in.has_presence_penalty()) out.presence_penalty = in.presence_penalty();
  if (in.has_frequency_penalty()) out.frequency_penalty = in.frequency_penalty();
  if (in.has_seed()) out.seed = in.seed();
  out.bias.reserve(in.logit_bias_size());
  for (int i = 0; i < in.logit_bias_size(); ++i) {
    const v1::LogitBias& bias = in.logit_bias(i);
    if (!bias.has_token_id() || !bias.has_bias()) {
      return InvalidField("sampling.logit_bias[" + std::to_string(i) + "]",
                          "token_id and bias must both be set");
    }
    out.bias.push_back({bias.token_id(), bias.bias()});
  }
  return absl::OkStatus();
}

void Convert(const v1::StoppingCriteria& in, StoppingOptions& out) {
  out.fit_max_tokens = !in.has_max_tokens();
  if (in.has_max_tokens()) out.max_tokens = in.max_tokens();
  if (in.has_min_tokens()) out.min_tokens = in.min_tokens();
  if (in.has_ignore_eos()) out.ignore_eos = in.ignore_eos();
  if (in.has_include_stop()) out.include_stop = in.include_stop();
  out.stop_strings.assign(in.stop_strings().begin(), in.stop_strings().end());
  out.stop_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
}

void Convert(const v1::OutputOptions& in, OutputOptions& out) {
  if (in.has_text()) out.text = in.text();
  if (in.has_token_ids()) out.ids = in.token_ids();
  if (in.has_logprobs()) out.logprobs = in.logprobs();
  if (in.has_prompt_logprobs()) out.prompt_logprobs = in.prompt_logprobs();
  if (in.has_layer_statistics()) out.layer_statistics = in.layer_statistics();
  if (in.has_special_tokens()) out.special_tokens = in.special_tokens();
}

absl::Status Convert(const v1::Attention& in, AttentionChoice& out) {
  switch (in.mode_case()) {
    case v1::Attention::kFull:
      out.mode = AttentionMode::kFull;
      break;
    case v1::Attention::kDynamic:
      out.mode = AttentionMode::kDynamic;
      break;
    case v1::Attention::kProfile:
      out.mode = AttentionMode::kProfile;
      break;
    case v1::Attention::MODE_NOT_SET:
      break;
  }
  ASSIGN_OR_RETURN(out.settings, ReadSettings("attention.", in));
  switch (in.begin()) {
    case v1::BEGIN_UNSPECIFIED:
      break;
    case v1::BEGIN_AS_ASKED:
      out.begin = Begin::kAsAsked;
      break;
    case v1::BEGIN_FULL:
      out.begin = Begin::kFull;
      break;
    case v1::BEGIN_FULL_WHERE_RECENT_MASS_WAS_LOW:
      out.begin = Begin::kFullWhereRecentMassWasLow;
      break;
    default:
      return UnknownChoice("attention.begin");
  }
  return absl::OkStatus();
}

absl::Status Convert(v1::Speculation in, std::optional<Speculation>& out) {
  switch (in) {
    case v1::SPECULATION_UNSPECIFIED:
      break;
    case v1::SPECULATION_OFF:
      out = Speculation::kOff;
      break;
    case v1::SPECULATION_PROMPT:
      out = Speculation::kPrompt;
      break;
    case v1::SPECULATION_SELF:
      out = Speculation::kSelf;
      break;
    case v1::SPECULATION_AUTO:
      out = Speculation::kAuto;
      break;
    default:
      return UnknownChoice("speculation");
  }
  return absl::OkStatus();
}

void Convert(const TokenDetail& in, v1::TokenLogprobs& out) {
  out.set_token_id(in.id);
  out.set_logprob(in.logprob);
  for (const TokenLogprob& top : in.top) {
    v1::TokenLogprob* message = out.add_top();
    message->set_token_id(top.id);
    message->set_logprob(top.logprob);
  }
}

void Convert(const ResolvedAttention& in, v1::AttentionUsed& out) {
  WriteSettings(UsedSettings(in), out);
  if (in.mode == AttentionMode::kFull) {
    out.set_mode(v1::ATTENTION_MODE_FULL);
    return;
  }
  out.set_mode(v1::ATTENTION_MODE_DYNAMIC);
  if (in.mode == AttentionMode::kProfile) {
    out.set_mode(v1::ATTENTION_MODE_PROFILE);
    out.set_profile(in.profile->name);
    out.set_profile_version(in.profile->version);
  }
  if (in.options.relative) out.set_relative_threshold(in.options.relative_c);
  if (!in.min_mass) return;
  out.set_begin(in.begin == Begin::kFull ? v1::BEGIN_FULL : v1::BEGIN_AS_ASKED);
}

void Convert(std::chrono::nanoseconds in, google::protobuf::Duration& out) {
  constexpr int64_t kNanosPerSecond = 1'000'000'000;
  out.set_seconds(in.count() / kNanosPerSecond);
  out.set_nanos(static_cast<int32_t>(in.count() % kNanosPerSecond));
}

void Convert(const Timing& in, v1::Timing& out) {
  Convert(in.queue, *out.mutable_queue());
  Convert(in.prefill, *out.mutable_prefill());
  Convert(in.first_token, *out.mutable_first_token());
  Convert(in.decode, *out.mutable_decode());
}

v1::FinishReason Convert(FinishReason in) {
  switch (in) {
    case FinishReason::kStopToken:
      return v1::FINISH_REASON_STOP_TOKEN;
    case FinishReason::kEndOfText:
      return v1::FINISH_REASON_END_OF_TEXT;
    case FinishReason::kStopString:
      return v1::FINISH_REASON_STOP_STRING;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCutOff:
      return v1::FINISH_REASON_CUT_OFF;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<Request> ToRequest(const v1::GenerateRequest& message) {
  Request request;
  request.id = message.request_id();
  request.parse_special = message.parse_special();
  switch (message.prompt_case()) {
    case v1::GenerateRequest::kText:
      request.prompt = message.text();
      break;
    case v1::GenerateRequest::kTokenIds:
      request.prompt =
          std::vector<int32_t>(message.token_ids().ids().begin(), message.token_ids().ids().end());
      break;
    case v1::GenerateRequest::kChat: {
      ASSIGN_OR_RETURN(request.prompt, ToChat(message.chat()));
      break;
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return InvalidField("prompt", "one of text, token_ids and chat must be set");
  }
  RETURN_IF_ERROR(Convert(message.sampling(), request.sampling));
  RETURN_IF_ERROR(Convert(message.attention(), request.attention));
  Convert(message.stopping(), request.stopping);
  Convert(message.output(), request.output);
  switch (message.priority()) {
    case v1::PRIORITY_LOW:
      request.priority = Priority::kLow;
      break;
    case v1::PRIORITY_UNSPECIFIED:
    case v1::PRIORITY_NORMAL:
      request.priority = Priority::kNormal;
      break;
    case v1::PRIORITY_HIGH:
      request.priority = Priority::kHigh;
      break;
    default:
      return UnknownChoice("priority");
  }
  RETURN_IF_ERROR(Convert(message.speculation(), request.speculation));
  return request;
}

v1::DefaultProfileMiss ToMessage(DefaultProfileUse use) {
  switch (use) {
    case DefaultProfileUse::kUsed:
      break;
    case DefaultProfileUse::kAbsent:
      return v1::DEFAULT_PROFILE_MISS_ABSENT;
    case DefaultProfileUse::kUnfit:
      return v1::DEFAULT_PROFILE_MISS_UNFIT;
    case DefaultProfileUse::kUnavailable:
      return v1::DEFAULT_PROFILE_MISS_UNAVAILABLE;
  }
  return v1::DEFAULT_PROFILE_MISS_UNSPECIFIED;
}

v1::GenerateResponse ToMessage(const StartedEvent& event, const EngineInfo& model) {
  v1::GenerateResponse message;
  v1::Started& started = *message.mutable_started();
  started.set_model(model.model_name);
  started.set_request_id(event.request_id);
  started.set_prompt_tokens(event.prompt_tokens);
  started.set_cached_tokens(event.cached_tokens);
  started.set_max_tokens(event.max_tokens);
  started.set_seed(event.seed);
  started.set_rope_theta(event.rope_theta);
  started.set_rope_factor(event.rope_factor);
  v1::AttentionUsed& attention = *started.mutable_attention();
  Convert(event.attention, attention);
  if (event.attention.profile == nullptr) return message;
  for (ProfileDifference& found : DifferencesOf(*event.attention.profile, model)) {
    v1::ProfileDifference& difference = *attention.add_profile_differences();
    difference.set_what(std::move(found.what));
    difference.set_profile(std::move(found.profile));
    difference.set_served(std::move(found.served));
  }
  return message;
}

v1::GenerateResponse ToMessage(const PrefillEvent& event) {
  v1::GenerateResponse message;
  v1::PrefillProgress& prefill = *message.mutable_prefill();
  prefill.set_done(event.done);
  prefill.set_total(event.total);
  for (const TokenDetail& token : event.prompt_logprobs) {
    Convert(token, *prefill.add_prompt_logprobs());
  }
  return message;
}

v1::GenerateResponse ToMessage(DeltaEvent event) {
  v1::GenerateResponse message;
  v1::Delta& delta = *message.mutable_delta();
  delta.set_text(std::move(event.text));
  delta.mutable_token_ids()->Add(event.ids.begin(), event.ids.end());
  for (const TokenDetail& token : event.logprobs) Convert(token, *delta.add_logprobs());
  return message;
}

v1::GenerateResponse ToMessage(const FinishedEvent& event) {
  v1::GenerateResponse message;
  v1::Finished& finished = *message.mutable_finished();
  finished.set_finish_reason(Convert(event.reason));
  if (event.reason == FinishReason::kStopString) finished.set_stop_string(event.matched_stop);
  if (event.matched_id) finished.set_stop_token_id(*event.matched_id);
  v1::Usage& usage = *finished.mutable_usage();
  usage.set_prompt_tokens(event.prompt_tokens);
  usage.set_cached_tokens(event.cached_tokens);
  usage.set_output_tokens(event.output_tokens);
  Convert(event.timing, *finished.mutable_timing());
  v1::AttentionStats& attention = *finished.mutable_attention();
  attention = eta::ToMessage(event.attention);
  for (const LayerDensity& layer : event.layers) {
    v1::LayerDensity& density = *attention.add_layers();
    density.set_head_density(layer.head_density);
    density.set_union_density(layer.union_density);
  }
  finished.set_preemptions(event.preemptions);
  if (event.full_from) finished.set_full_from(*event.full_from);
  if (event.drafts != DraftCounts()) *finished.mutable_drafts() = ToMessage(event.drafts);
  return message;
}

bool Merge(v1::GenerateResponse& last, const v1::GenerateResponse& next) {
  if (last.event_case() != next.event_case()) return false;
  if (next.has_delta()) {
    last.mutable_delta()->mutable_text()->append(next.delta().text());
    MergeCalls(next.delta(), *last.mutable_delta());
    last.mutable_delta()->mutable_token_ids()->MergeFrom(next.delta().token_ids());
    last.mutable_delta()->mutable_logprobs()->MergeFrom(next.delta().logprobs());
    return true;
  }
  if (next.has_prefill()) {
    last.mutable_prefill()->set_done(next.prefill().done());
    last.mutable_prefill()->mutable_prompt_logprobs()->MergeFrom(next.prefill().prompt_logprobs());
    return true;
  }
  return false;
}

}  // namespace eta
