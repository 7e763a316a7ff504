#include "service/generate/generate_reactor.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/request/request_validation.h"
#include "service/calls/admission.h"
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
  if (parsed.attention().has_profile()) {
    wish.profile = parsed.attention().profile();
    wish.profile_field = "attention.profile";
  }
  return Begin(context(), caller.tenant, std::move(wish));
}

void GenerateReactor::OnStarted(int32_t /*i*/, StartedEvent event) {
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
  Enqueue(ToMessage(std::move(event)));
}

void GenerateReactor::OnFinished(int32_t /*i*/, const FinishedEvent& event) {
  Enqueue(ToMessage(event));
}

bool GenerateReactor::Merge(v1::GenerateResponse& last, const v1::GenerateResponse& next) const {
  return eta::Merge(last, next);
}

}  // namespace eta
