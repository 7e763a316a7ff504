#include "service/generate_reactor.h"

#include <utility>

#include "engine/error.h"
#include "engine/request_validation.h"
#include "service/admission.h"
#include "service/convert.h"
#include "service/request_id.h"
#include "service/store_status.h"

namespace eta {

GenerateReactor::GenerateReactor(grpc::CallbackServerContext* context, const CallParts& parts,
                                 std::function<void()> on_done)
    : StreamReactor(context, parts, "Generate", parts.engine.limits().max_congestion,
                    std::move(on_done)),
      parts_(parts) {}

std::shared_ptr<GenerateReactor> GenerateReactor::Self() {
  return std::static_pointer_cast<GenerateReactor>(shared_from_this());
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateReactor::Start(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer& message, const CallParts& parts,
    std::function<void()> on_done) {
  const std::shared_ptr<GenerateReactor> reactor(
      new GenerateReactor(context, parts, std::move(on_done)));
  reactor->KeepAlive();
  const absl::Status status = reactor->Begin(message);
  if (!status.ok()) reactor->End(status);
  // gRPC cannot be done before it was given the reactor, so the pointer is good.
  return reactor.get();
}

absl::Status GenerateReactor::Begin(const grpc::ByteBuffer& message) {
  deadline_ = SteadyDeadline(context());
  const auto tenant = Admit(context(), parts_);
  if (!tenant.ok()) return tenant.status();
  record().tenant = tenant->id();
  auto parsed = ParseMessage<v1::GenerateRequest>(message, parts_.options.max_message_bytes);
  if (!parsed.ok()) return parsed.status();
  // Known early, so that a refusal names the request too.
  if (parsed->request_id().empty()) parsed->set_request_id(NewRequestId());
  if (IsRequestId(parsed->request_id())) SetRequestId(parsed->request_id());
  if (parsed->has_model()) {
    const std::string& served = parts_.engine.info().model_name;
    if (absl::Status s = CheckModel(parsed->model(), served); !s.ok()) return s;
  }
  auto request = ToRequest(*parsed);
  if (!request.ok()) return request.status();
  request_ = *std::move(request);
  request_.tenant = tenant->id();
  request_.deadline = deadline_;
  return ResolveProfile(*tenant, parsed->attention());
}

// Goes on to Submit, on another thread if the profile is not in memory.
absl::Status GenerateReactor::ResolveProfile(const Tenant& tenant, const v1::Attention& attention) {
  const bool named = attention.has_profile();
  const bool unsaid = attention.mode_case() == v1::Attention::MODE_NOT_SET;
  const std::string reference = named ? attention.profile() : parts_.options.default_profile;
  if (!named && (!unsaid || reference.empty() || parts_.profiles == nullptr)) return Submit();
  const std::string field = "attention.profile";
  const auto parsed = ParseProfileReference(field, reference);
  if (!parsed.ok()) return parsed.status();
  if (parts_.profiles == nullptr) {
    return NamingProfile(
        MakeError(absl::StatusCode::kNotFound, "this server has no profiles (--profile_store)",
                  {.reason = "PROFILE_NOT_FOUND"}),
        reference, field);
  }
  parts_.profiles->Resolve(tenant, *parsed,
                           [self = Self(), named, reference, field](ProfileCache::Answer answer) {
                             absl::Status status = answer.status();
                             if (answer.ok()) {
                               self->request_.attention.mode = AttentionMode::kProfile;
                               self->request_.attention.profile = *std::move(answer);
                             } else if (!named && absl::IsNotFound(status)) {
                               status = absl::OkStatus();  // this tenant has no default of its own
                             }
                             if (status.ok()) status = self->Submit();
                             if (!status.ok()) self->End(NamingProfile(status, reference, field));
                           });
  return absl::OkStatus();
}

absl::Status GenerateReactor::Submit() {
  const ResolvedAttention attention =
      ResolveAttention(request_.attention, parts_.engine.info().config);
  record().resolved = true;
  record().mode = attention.mode;
  if (attention.profile != nullptr) {
    record().profile = attention.profile->name;
    record().profile_version = attention.profile->version;
  }
  const absl::StatusOr<uint64_t> handle = parts_.engine.Submit(std::move(request_), Self());
  if (!handle.ok()) return handle.status();
  bool cancelled;
  {
    const std::lock_guard lock(mutex_);
    handle_ = *handle;
    cancelled = cancelled_;
  }
  if (cancelled) parts_.engine.Cancel(*handle);
  return absl::OkStatus();
}

void GenerateReactor::OnStarted(StartedEvent event) {
  Enqueue(ToMessage(event, parts_.engine.info().model_name));
}

void GenerateReactor::OnPrefill(PrefillEvent event) {
  Enqueue(ToMessage(event));
}

void GenerateReactor::OnDelta(DeltaEvent event) {
  Enqueue(ToMessage(std::move(event)));
}

void GenerateReactor::OnFinished(FinishedEvent event) {
  Enqueue(ToMessage(event));
  record().submitted = true;
  record().outcome = std::move(event);
  End(absl::OkStatus());
}

void GenerateReactor::OnFailed(absl::Status status, FinishedEvent so_far) {
  ErrorDetail detail = GetErrorDetail(status);
  detail.metadata["output_tokens"] = std::to_string(so_far.output_tokens);
  record().submitted = true;
  record().outcome = std::move(so_far);
  End(MakeError(status.code(), std::string(status.message()), std::move(detail)));
}

bool GenerateReactor::Merge(v1::GenerateResponse& last, const v1::GenerateResponse& next) const {
  return eta::Merge(last, next);
}

void GenerateReactor::OnCancel() {
  // gRPC cancels a call whose deadline has passed; the engine ends it with DEADLINE_EXCEEDED
  // itself.
  if (Clock::now() >= deadline_) return;
  std::optional<uint64_t> to_cancel;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    to_cancel = handle_;
  }
  if (to_cancel) parts_.engine.Cancel(*to_cancel);
}

}  // namespace eta
