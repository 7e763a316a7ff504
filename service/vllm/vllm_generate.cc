#include "service/vllm/vllm_generate.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "service/calls/admission.h"
#include "service/wire/request_id.h"

namespace eta {

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmGenerate::Start(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer& message, const VllmContext& vllm,
    std::function<void()> on_done) {
  const std::shared_ptr<VllmGenerate> reactor(new VllmGenerate(context, vllm, std::move(on_done)));
  reactor->Run([&] { return reactor->Read(message); });
  // gRPC cannot be done before it was given the reactor, so the pointer is good.
  return reactor.get();
}

absl::Status VllmGenerate::Read(const grpc::ByteBuffer& message) {
  record().service = kVllmEngine;
  ASSIGN_OR_RETURN(const auto caller, Admit(context(), service(), {Role::kGenerate}, record()));
  ASSIGN_OR_RETURN(lease(), service().ledger.Enter(caller.tenant));
  ASSIGN_OR_RETURN(const auto parsed, ParseMessage<vllm_pb::GenerateRequest>(
                                          message, service().options.max_message_bytes));
  ASSIGN_OR_RETURN(auto asked,
                   ToRequest(parsed, service().engine.limits(), service().options.vllm_max_tokens));
  // A client's name may be that of other calls too, and is longer than the engine takes.
  asked.request.id = NewRequestId();
  const std::string& name = parsed.request_id().empty() ? asked.request.id : parsed.request_id();
  SetRequestId(name);
  ASSIGN_OR_RETURN(const auto attention, AttentionAsked());
  Wish wish{.answers = asked.answers, .format = std::move(asked.format)};
  if (attention.mode == AttentionMode::kProfile) {
    wish.profile = attention.profile;
    wish.profile_field = kAttentionKey;
  } else {
    asked.request.attention.mode = attention.mode;
  }
  sampling_ = asked.request.sampling;
  output_ = asked.request.output;
  stream_ = asked.stream;
  parts_.resize(static_cast<size_t>(asked.answers));
  name_ = vllm_.requests.Add(caller.tenant, name,
                             std::static_pointer_cast<VllmGenerate>(shared_from_this()));
  wish.request = std::move(asked.request);
  return Begin(context(), caller.tenant, std::move(wish));
}

absl::StatusOr<AttentionName> VllmGenerate::AttentionAsked() const {
  const auto [first, last] = context().client_metadata().equal_range(kAttentionKey);
  if (first == last) return vllm_.attention;
  if (std::next(first) != last) return InvalidField(kAttentionKey, "there twice");
  auto attention = ParseAttentionName({first->second.data(), first->second.size()});
  if (attention.ok()) return attention;
  return InField(kAttentionKey, attention.status());
}

void VllmGenerate::Abort() {
  aborted_ = true;
  Cancel(/*for_deadline=*/false);
}

void VllmGenerate::OnStarted(int32_t i, StartedEvent event) {
  vllm_pb::GenerateComplete& complete = parts_[i].complete;
  complete.set_index(static_cast<uint32_t>(i));
  complete.set_prompt_tokens(static_cast<uint32_t>(event.prompt_tokens));
  complete.set_cached_tokens(static_cast<uint32_t>(event.cached_tokens));
}

void VllmGenerate::OnPrefill(int32_t i, PrefillEvent event) {
  if (!output_.prompt_logprobs) return;
  AppendPrompt(event.prompt_logprobs, output_, *first_id_, parts_[i].prompt);
}

// Whether the next message of the answer is the one that tells of the prompt.
bool VllmGenerate::TellsPrompt(Part& part) {
  if (!output_.prompt_logprobs || !first_id_) return false;
  if (std::exchange(part.prompt_told, true)) return false;
  AppendPrompt({}, output_, *first_id_, part.prompt);  // of a single token there was no event
  return true;
}

void VllmGenerate::OnDelta(int32_t i, DeltaEvent event) {
  Part& part = parts_[i];
  const bool logprobs = output_.logprobs.has_value();
  if (!stream_) {
    AppendTokens(event, output_, *part.complete.mutable_output_ids(),
                 logprobs ? part.complete.mutable_output_logprobs() : nullptr);
    return;
  }
  vllm_pb::GenerateResponse message;
  vllm_pb::GenerateStreamChunk& chunk = *message.mutable_chunk();
  chunk.set_index(part.complete.index());
  chunk.set_prompt_tokens(part.complete.prompt_tokens());
  chunk.set_cached_tokens(part.complete.cached_tokens());
  chunk.set_completion_tokens(static_cast<uint32_t>(event.ids.size()));
  AppendTokens(event, output_, *chunk.mutable_token_ids(),
               logprobs ? chunk.mutable_output_logprobs() : nullptr);
  if (TellsPrompt(part)) *chunk.mutable_input_logprobs() = std::move(part.prompt);
  Enqueue(std::move(message));
}

void VllmGenerate::OnFinished(int32_t i, const FinishedEvent& event) {
  SetEnd(event, parts_[i].complete);
  Complete(i);
}

bool VllmGenerate::OnCancelled(int32_t i, const FinishedEvent& so_far) {
  if (!aborted_) return false;
  cut_ = true;
  vllm_pb::GenerateComplete& complete = parts_[i].complete;
  complete.set_index(static_cast<uint32_t>(i));
  complete.set_finish_reason("abort");
  complete.set_completion_tokens(static_cast<uint32_t>(so_far.output_tokens));
  Complete(i);
  return true;
}

void VllmGenerate::Complete(int32_t i) {
  Part& part = parts_[i];
  if (TellsPrompt(part)) {
    *part.complete.mutable_input_logprobs() = std::move(part.prompt);
  }
  vllm_pb::GenerateResponse message;
  *message.mutable_complete() = std::move(part.complete);
  Enqueue(std::move(message));
}

void VllmGenerate::EndCall(const absl::Status& status) {
  name_.Release();
  if (status.ok()) AddReadings();
  if (cut_) {
    RecordAs(MakeError(absl::StatusCode::kCancelled, "the client aborted the request",
                       {.reason = "CLIENT_CANCELLED"}));
  }
  GenerateStream::EndCall(InVllmFields(status, sampling_));
}

void VllmGenerate::AddReadings() {
  const CallRecord& told = record();
  if (told.resolved) {
    AttentionName used{.mode = told.mode};
    if (told.mode == AttentionMode::kProfile) {
      used.profile = absl::StrCat(told.profile, "@", told.profile_version);
    }
    AddTrailer(kAttentionKey, Name(used));
  }
  const AttentionSums& sums = told.outcome.attention;
  if (sums.decode_rows == 0) return;
  AddTrailer("x-eta-head-density", absl::StrCat(sums.head_density()));
  AddTrailer("x-eta-union-density", absl::StrCat(sums.union_density()));
  AddTrailer("x-eta-kv-bytes-read", absl::StrCat(sums.kv_bytes_read));
  AddTrailer("x-eta-kv-bytes-dense", absl::StrCat(sums.kv_bytes_dense));
}

}  // namespace eta
