#include "service/generate/generate_reactor.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "engine/request/chat_validation.h"
#include "engine/request/profile_validation.h"
#include "engine/request/request_validation.h"
#include "kernels/system/failpoint.h"
#include "service/calls/admission.h"
#include "service/generate/convert.h"
#include "service/profiles/profile_cache.h"
#include "service/wire/request_id.h"
#include "service/wire/store_status.h"

namespace eta {
namespace {

constexpr std::chrono::milliseconds kMemoryRetry{1000};

// What became of a default profile that can be used, or why not.
DefaultProfileUse UseOf(const absl::Status& usable) {
  if (usable.ok()) return DefaultProfileUse::kUsed;
  if (absl::IsNotFound(usable)) return DefaultProfileUse::kAbsent;
  const bool unfit = GetErrorDetail(usable).reason == "PROFILE_MISMATCH";
  return unfit ? DefaultProfileUse::kUnfit : DefaultProfileUse::kUnavailable;
}

// Bytes that tokens have to be made of.
int64_t TextBytes(const Request& request) {
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    return static_cast<int64_t>(text->size());
  }
  const auto* chat = std::get_if<Chat>(&request.prompt);
  return chat == nullptr ? 0 : ChatBytes(*chat);
}

}  // namespace

GenerateReactor::GenerateReactor(grpc::CallbackServerContext* context,
                                 const ServiceContext& service, std::function<void()> on_done)
    : StreamReactor(context, service, "Generate", service.engine.limits().max_congestion,
                    std::move(on_done)),
      service_(service) {}

std::shared_ptr<GenerateReactor> GenerateReactor::Self() {
  return std::static_pointer_cast<GenerateReactor>(shared_from_this());
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateReactor::Start(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer& message,
    const ServiceContext& service, std::function<void()> on_done) {
  const std::shared_ptr<GenerateReactor> reactor(
      new GenerateReactor(context, service, std::move(on_done)));
  reactor->KeepAlive();
  const absl::Status status = CatchOutOfMemory([&] { return reactor->Begin(message); });
  if (!status.ok()) {
    reactor->EndWait();
    reactor->End(status);
  }
  // gRPC cannot be done before it was given the reactor, so the pointer is good.
  return reactor.get();
}

absl::Status GenerateReactor::Begin(const grpc::ByteBuffer& message) {
  ASSIGN_OR_RETURN(const auto caller, Admit(context(), service_, {Role::kGenerate}, record()));
  ASSIGN_OR_RETURN(lease(), service_.ledger.Enter(caller.tenant));
  ASSIGN_OR_RETURN(auto parsed,
                   ParseMessage<v1::GenerateRequest>(message, service_.options.max_message_bytes));
  // Known early, so that a refusal names the request too.
  if (parsed.request_id().empty()) parsed.set_request_id(NewRequestId());
  if (IsRequestId(parsed.request_id())) SetRequestId(parsed.request_id());
  if (parsed.has_model()) {
    const std::string& served = service_.engine.info().model_name;
    RETURN_IF_ERROR(CheckModel(parsed.model(), served));
  }
  ASSIGN_OR_RETURN(request_, ToRequest(parsed));
  request_.tenant = caller.tenant.id();
  request_.arrival = arrival_;
  request_.deadline = SteadyDeadline(context());
  const TenantLimit limit = service_.limits.Of(caller.tenant);
  const bool budgeted = limit.tokens_per_second > 0.0;
  request_.share = {.weight = limit.weight,
                    .max_kv_tokens = limit.max_kv_tokens,
                    .burst_tokens = budgeted ? limit.burst_tokens : 0};
  return ResolveProfile(caller.tenant, parsed.attention());
}

// Goes on to Submit, on another thread if the profile is not in memory.
absl::Status GenerateReactor::ResolveProfile(const Tenant& tenant, const v1::Attention& attention) {
  if (attention.has_profile()) return ResolveNamed(tenant, attention.profile());
  const bool unsaid = attention.mode_case() == v1::Attention::MODE_NOT_SET;
  const std::string& reference = service_.options.default_profile;
  if (!unsaid || reference.empty() || service_.profiles == nullptr) return Submit();
  return ResolveDefault(tenant, reference);
}

absl::Status GenerateReactor::ResolveNamed(const Tenant& tenant, const std::string& reference) {
  const std::string field = "attention.profile";
  ASSIGN_OR_RETURN(const auto parsed, ParseProfileReference(field, reference));
  if (service_.profiles == nullptr) {
    return NamingProfile(
        MakeError(absl::StatusCode::kNotFound, "this server has no profiles (--profile_store)",
                  {.reason = "PROFILE_NOT_FOUND"}),
        reference, field);
  }
  BeginWait();
  service_.profiles->Resolve(
      tenant, parsed, [self = Self(), reference, field](ProfileCache::Answer answer) {
        if (!self->EndWait()) return;  // it has ended
        absl::Status status = answer.status();
        if (answer.ok()) {
          status = CatchOutOfMemory([&] { return self->SubmitWith(*std::move(answer)); });
        }
        if (!status.ok()) self->End(NamingProfile(status, reference, field));
      });
  return absl::OkStatus();
}

// The request named no profile, so that it goes on without one, whatever is in the way.
absl::Status GenerateReactor::ResolveDefault(const Tenant& tenant, const std::string& reference) {
  ASSIGN_OR_RETURN(const auto parsed, ParseProfileReference("default_profile", reference));
  BeginWait();
  service_.profiles->ResolveDefault(tenant, parsed, [self = Self()](ProfileCache::Answer answer) {
    if (!self->EndWait()) return;  // it has ended
    const absl::Status status = CatchOutOfMemory([&]() -> absl::Status {
      absl::Status usable = answer.status();
      if (answer.ok()) usable = ValidateProfile(**answer, self->service_.engine.info());
      if (GetErrorDetail(usable).reason == "DRAINING") return usable;
      self->default_profile_ = self->record().default_profile = UseOf(usable);
      if (usable.ok()) return self->SubmitWith(*std::move(answer));
      AttentionChoice& choice = self->request_.attention;
      if (!choice.settings.min_mass)
        choice.begin.reset();  // only the profile's could have asked for one
      return self->Submit();
    });
    if (!status.ok()) self->End(status);
  });
  return absl::OkStatus();
}

void GenerateReactor::BeginWait() {
  const MutexLock lock(mutex_);
  waits_ = true;
}

bool GenerateReactor::EndWait() {
  const MutexLock lock(mutex_);
  return std::exchange(waits_, false);
}

absl::Status GenerateReactor::SubmitWith(std::shared_ptr<const ThresholdProfile> profile) {
  request_.attention.mode = AttentionMode::kProfile;
  request_.attention.profile = std::move(profile);
  return Submit();
}

absl::Status GenerateReactor::Submit() {
  const ResolvedAttention attention =
      ResolveAttention(request_.attention, service_.engine.info().config);
  record().resolved = true;
  record().mode = attention.mode;
  if (attention.profile != nullptr) {
    record().profile = attention.profile->name;
    record().profile_version = attention.profile->version;
  }
  ASSIGN_OR_RETURN(const auto least_tokens, service_.engine.Check(request_));
  if (std::holds_alternative<std::vector<int32_t>>(request_.prompt)) return Queue();
  // Text is paid for before it is made tokens.
  RETURN_IF_ERROR(lease().Charge(least_tokens + request_.stopping.least_tokens()));
  return AwaitTokenizer();
}

absl::Status GenerateReactor::AwaitTokenizer() {
  const TaskOwner owner{.name = request_.tenant};
  BeginWait();  // from here on the request is whose who ends the wait
  const absl::Status posted = CatchOutOfMemory([&] {
    const auto tokenize = [self = Self()] {
      if (!self->EndWait()) return;  // it has ended
      const absl::Status status = CatchOutOfMemory([&] {
        (void)ETA_FAILPOINT(kGenerateTokenize);
        return self->service_.state.closed() ? ServerDraining() : self->Queue();
      });
      if (!status.ok()) self->End(status);
    };
    return service_.tokenizer_calls.Post(owner, tokenize) ? absl::OkStatus() : TokenizerCallsFull();
  });
  // Of what was not posted whoever cancels may have made the end.
  return posted.ok() || !EndWait() ? absl::OkStatus() : posted;
}

absl::Status GenerateReactor::Queue() {
  text_cost_ = TextBytes(request_) / kTextBytesPerToken;
  lease().Use(text_cost_);
  ASSIGN_OR_RETURN(auto prepared, service_.engine.Prepare(std::move(request_)));
  RETURN_IF_ERROR(lease().Charge(prepared.prompt_tokens() + prepared.request.stopping.max_tokens));
  // A refusal gives the charge back, but for the cost of the text, when the call ends.
  place_ = service_.streams.Add(Self());
  const absl::StatusOr<uint64_t> handle = service_.engine.Submit(std::move(prepared), Self());
  if (!handle.ok()) {
    place_.Release();
    return handle.status();
  }
  bool cancelled;
  {
    const MutexLock lock(mutex_);
    handle_ = *handle;
    cancelled = cancelled_;
  }
  if (cancelled) service_.engine.Cancel(*handle);
  return absl::OkStatus();
}

void GenerateReactor::OnStarted(StartedEvent event) {
  kv_tokens_ = event.prompt_tokens;
  v1::GenerateResponse message = ToMessage(event, service_.engine.info());
  if (default_profile_ && *default_profile_ != DefaultProfileUse::kUsed) {
    message.mutable_started()->mutable_attention()->set_default_profile_miss(
        ToMessage(*default_profile_));
  }
  Enqueue(std::move(message));
}

void GenerateReactor::OnPrefill(PrefillEvent event) {
  Enqueue(ToMessage(event));
}

void GenerateReactor::OnDelta(DeltaEvent event) {
  (void)ETA_FAILPOINT(kGenerateDelta);
  ++kv_tokens_;
  Enqueue(ToMessage(std::move(event)));
}

void GenerateReactor::OnFinished(FinishedEvent event) {
  place_.Release();
  lease().Use(Used(event));
  Enqueue(ToMessage(event));
  record().submitted = true;
  record().reader_behind = true;
  record().outcome = std::move(event);
  End(absl::OkStatus());
}

void GenerateReactor::OnFailed(absl::Status status, FinishedEvent so_far) {
  place_.Release();
  lease().Use(Used(so_far));
  if (absl::IsCancelled(status)) {
    status = ends_for_memory_
                 ? MakeError(absl::StatusCode::kResourceExhausted,
                             "the answer was given up, since the server is short of memory",
                             {.reason = "MEMORY_PRESSURE", .retry_after = kMemoryRetry})
                 : DeadlineOr(std::move(status));
  }
  ErrorDetail detail = GetErrorDetail(status);
  detail.metadata["output_tokens"] = std::to_string(so_far.output_tokens);
  record().submitted = true;
  record().reader_behind = Full();
  record().outcome = std::move(so_far);
  End(MakeError(status.code(), std::string(status.message()), std::move(detail)));
}

bool GenerateReactor::Merge(v1::GenerateResponse& last, const v1::GenerateResponse& next) const {
  return eta::Merge(last, next);
}

void GenerateReactor::OnCancel() {
  StreamReactor::OnCancel();
  if (EndsForDeadline()) deadline_passed_ = true;
  Cancel();
}

void GenerateReactor::EndForMemory() {
  ends_for_memory_ = true;
  Cancel();
}

void GenerateReactor::Cancel() {
  std::optional<uint64_t> to_cancel;
  {
    const MutexLock lock(mutex_);
    cancelled_ = true;
    to_cancel = handle_;
  }
  if (to_cancel) service_.engine.Cancel(*to_cancel);
  if (!EndWait()) return;
  request_ = {};  // the cache holds this object until the store has answered
  End(DeadlineOr(MakeError(absl::StatusCode::kCancelled, "the client cancelled the call, or left",
                           {.reason = "CLIENT_CANCELLED"})));
}

absl::Status GenerateReactor::DeadlineOr(absl::Status status) const {
  if (deadline_passed_) return DeadlinePassed(/*started=*/kv_tokens_ > 0);
  return status;
}

int64_t GenerateReactor::Used(const FinishedEvent& outcome) const {
  const bool ran = outcome.timing.queue.count() > 0 || outcome.output_tokens > 0;
  if (!ran) return text_cost_;
  return std::max(text_cost_,
                  int64_t{outcome.prompt_tokens} - outcome.cached_tokens + outcome.output_tokens);
}

}  // namespace eta
