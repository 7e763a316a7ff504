#include "service/generate/generate_reactor.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/request/request_validation.h"
#include "service/calls/admission.h"
#include "service/generate/answer_plan.h"
#include "service/generate/convert.h"
#include "service/generate/convert_format.h"
#include "service/wire/request_id.h"

namespace eta {

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateReactor::Start(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer& message,
    const ServiceContext& service, std::function<void()> on_done) {
  const std::shared_ptr<GenerateReactor> reactor(
      new GenerateReactor(context, service, std::move(on_done)));
  reactor->Run([&] { return reactor->Read(message); });
  // gRPC cannot be done before it was given the reactor, so the pointer is good.
  return reactor.get();
}

absl::Status GenerateReactor::Read(const grpc::ByteBuffer& message) {
  ASSIGN_OR_RETURN(const auto caller, Admit(context(), service(), {Role::kGenerate}, record()));
  ASSIGN_OR_RETURN(lease(), service().ledger.Enter(caller.tenant));
  ASSIGN_OR_RETURN(auto parsed,
                   ParseMessage<v1::GenerateRequest>(message, service().options.max_message_bytes));
  // Known early, so that a refusal names the request too.
  if (parsed.request_id().empty()) parsed.set_request_id(NewRequestId());
  if (IsRequestId(parsed.request_id())) SetRequestId(parsed.request_id());
  if (parsed.has_model()) {
    const std::string& served = service().engine.info().model_name;
    RETURN_IF_ERROR(CheckModel(parsed.model(), served));
  }
  Wish wish;
  ASSIGN_OR_RETURN(wish.request, ToRequest(parsed));
  if (parsed.has_format()) {
    ASSIGN_OR_RETURN(wish.format, ToFormat(parsed.format()));
  }
  const Engine& engine = service().engine;
  ASSIGN_OR_RETURN(plan_, PlanAnswer(parsed.output(), engine.info(), engine.limits(), wish.request,
                                     wish.format));
  if (parsed.attention().has_profile()) {
    wish.profile = parsed.attention().profile();
    wish.profile_field = "attention.profile";
  }
  return Begin(context(), caller.tenant, std::move(wish));
}

void GenerateReactor::OnPrompt(const PreparedRequest& prepared) {
  if (plan_) plan_->in_reasoning = prepared.request.in_reasoning;
}

void GenerateReactor::OnStarted(int32_t /*i*/, StartedEvent event) {
  if (plan_) {
    plan_->seed = event.seed;
    plan_->prompt_tokens = event.prompt_tokens;
    reader_.emplace(*std::exchange(plan_, std::nullopt));
  }
  v1::GenerateResponse message = ToMessage(event, service().engine.info());
  if (default_profile() && *default_profile() != DefaultProfileUse::kUsed) {
    message.mutable_started()->mutable_attention()->set_default_profile_miss(
        ToMessage(*default_profile()));
  }
  Enqueue(std::move(message));
}

void GenerateReactor::OnPrefill(int32_t /*i*/, PrefillEvent event) {
  Enqueue(ToMessage(event));
}

void GenerateReactor::OnDelta(int32_t /*i*/, DeltaEvent event) {
  if (!reader_) return Enqueue(ToMessage(std::move(event)));
  AnswerPart part = reader_->Push(event.text, event.marks);
  event.text.clear();
  if (part.empty() && event.ids.empty() && event.logprobs.empty()) return;
  v1::GenerateResponse message = ToMessage(std::move(event));
  Put(std::move(part), *message.mutable_delta());
  Enqueue(std::move(message));
}

void GenerateReactor::OnFinished(int32_t /*i*/, const FinishedEvent& event) {
  v1::GenerateResponse message = ToMessage(event);
  if (reader_) {
    if (AnswerPart rest = reader_->Finish(); !rest.empty()) {
      v1::GenerateResponse delta;
      Put(std::move(rest), *delta.mutable_delta());
      Enqueue(std::move(delta));
    }
    for (const ToolCall& call : reader_->calls()) {
      v1::ToolCall& told = *message.mutable_finished()->add_tool_calls();
      told.set_id(call.id);
      told.set_name(call.name);
      told.set_arguments(call.arguments_json);
    }
  }
  Enqueue(std::move(message));
}

bool GenerateReactor::Merge(v1::GenerateResponse& last, const v1::GenerateResponse& next) const {
  return eta::Merge(last, next);
}

}  // namespace eta
