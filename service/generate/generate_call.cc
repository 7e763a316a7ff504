#include "service/generate/generate_call.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "engine/request/answers/format_validation.h"
#include "engine/request/chat_validation.h"
#include "engine/request/profile_validation.h"
#include "engine/request/request_validation.h"
#include "kernels/system/failpoint.h"
#include "service/calls/admission.h"
#include "service/profiles/profile_cache.h"
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

bool HasTokens(const Request& request) {
  return std::holds_alternative<std::vector<int32_t>>(request.prompt);
}

int64_t UsedBy(const FinishedEvent& outcome) {
  const bool ran = outcome.timing.queue.count() > 0 || outcome.output_tokens > 0;
  if (!ran) return 0;
  return int64_t{outcome.prompt_tokens} - outcome.cached_tokens + outcome.output_tokens;
}

// Of several answers: the sums, the longest times, and the newest reason.
void AddOutcome(FinishedEvent next, std::optional<FinishedEvent>& sum) {
  if (sum) {
    next.prompt_tokens += sum->prompt_tokens;
    next.cached_tokens += sum->cached_tokens;
    next.output_tokens += sum->output_tokens;
    next.preemptions += sum->preemptions;
    next.attention.Add(sum->attention);
    next.drafts.Add(sum->drafts);
    next.layers.clear();
    next.full_from.reset();
    next.timing.queue = std::max(next.timing.queue, sum->timing.queue);
    next.timing.prefill = std::max(next.timing.prefill, sum->timing.prefill);
    next.timing.first_token = std::max(next.timing.first_token, sum->timing.first_token);
    next.timing.decode = std::max(next.timing.decode, sum->timing.decode);
  }
  sum = std::move(next);
}

}  // namespace

GenerateCall::GenerateCall(const ServiceContext& service) : service_(service) {}

absl::Status GenerateCall::Begin(const grpc::ServerContextBase& context, const Tenant& tenant,
                                 Wish wish) {
  answers_.reserve(static_cast<size_t>(wish.answers));
  for (int32_t i = 0; i < wish.answers; ++i) answers_.emplace_back(*this, i);
  request_ = std::move(wish.request);
  format_ = std::move(wish.format);
  format_of_tools_ = format_ && format_->of_tools;
  request_.tenant = tenant.id();
  request_.arrival = arrival_;
  request_.deadline = SteadyDeadline(context);
  const TenantLimit limit = service_.limits.Of(tenant);
  const bool budgeted = limit.tokens_per_second > 0.0;
  request_.share = {
      .weight = limit.weight,
      .max_kv_tokens = limit.max_kv_tokens,
      .burst_tokens = budgeted ? std::max<int64_t>(1, limit.burst_tokens / answers()) : 0};
  return ResolveProfile(tenant, wish);
}

// Goes on to Submit, on another thread if the profile is not in memory.
absl::Status GenerateCall::ResolveProfile(const Tenant& tenant, const Wish& wish) {
  if (!wish.profile_field.empty()) return ResolveNamed(tenant, wish.profile, wish.profile_field);
  const std::string& reference = service_.options.default_profile;
  if (request_.attention.mode || reference.empty() || service_.profiles == nullptr) return Submit();
  return ResolveDefault(tenant, reference);
}

absl::Status GenerateCall::ResolveNamed(const Tenant& tenant, const std::string& reference,
                                        const std::string& field) {
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
        if (!status.ok()) self->EndCall(NamingProfile(status, reference, field));
      });
  return absl::OkStatus();
}

// The request named no profile, so that it goes on without one, whatever is in the way.
absl::Status GenerateCall::ResolveDefault(const Tenant& tenant, const std::string& reference) {
  ASSIGN_OR_RETURN(const auto parsed, ParseProfileReference("default_profile", reference));
  BeginWait();
  service_.profiles->ResolveDefault(tenant, parsed, [self = Self()](ProfileCache::Answer answer) {
    if (!self->EndWait()) return;  // it has ended
    const absl::Status status = CatchOutOfMemory([&]() -> absl::Status {
      absl::Status usable = answer.status();
      if (answer.ok()) usable = ValidateProfile(**answer, self->service_.engine.info());
      if (GetErrorDetail(usable).reason == "DRAINING") return usable;
      self->default_profile_ = self->call_record().default_profile = UseOf(usable);
      if (usable.ok()) return self->SubmitWith(*std::move(answer));
      AttentionChoice& choice = self->request_.attention;
      if (!choice.settings.min_mass)
        choice.begin.reset();  // only the profile's could have asked for one
      return self->Submit();
    });
    if (!status.ok()) self->EndCall(status);
  });
  return absl::OkStatus();
}

void GenerateCall::BeginWait() {
  const MutexLock lock(mutex_);
  waits_ = true;
}

bool GenerateCall::EndWait() {
  const MutexLock lock(mutex_);
  return std::exchange(waits_, false);
}

bool GenerateCall::Waits() {
  const MutexLock lock(mutex_);
  return waits_;
}

absl::Status GenerateCall::SubmitWith(std::shared_ptr<const ThresholdProfile> profile) {
  request_.attention.mode = AttentionMode::kProfile;
  request_.attention.profile = std::move(profile);
  return Submit();
}

absl::Status GenerateCall::Submit() {
  const ResolvedAttention attention =
      ResolveAttention(request_.attention, service_.engine.info().config);
  CallRecord& record = call_record();
  record.asked = {.chat = std::holds_alternative<Chat>(request_.prompt),
                  .temperature = request_.sampling.temperature,
                  .top_p = request_.sampling.top_p,
                  .max_tokens = request_.stopping.max_tokens};
  record.resolved = true;
  record.mode = attention.mode;
  if (attention.profile != nullptr) {
    record.profile = attention.profile->name;
    record.profile_version = attention.profile->version;
  }
  if (format_) record.format = {.kind = format_->kind};
  ASSIGN_OR_RETURN(const auto least_tokens, service_.engine.Check(request_));
  if (format_) {
    RETURN_IF_ERROR(OfFormat(ValidateFormat(*format_)));
    request_.format = service_.engine.formats().Find(request_.tenant, *format_);
    record.format->kept = request_.format != nullptr;
  }
  const bool compiles = format_ && !record.format->kept;
  // Work on a text or a format is paid for before it is done.
  if (compiles || !HasTokens(request_)) {
    RETURN_IF_ERROR(
        call_lease().Charge(answers() * (least_tokens + request_.stopping.least_tokens())));
  }
  return compiles ? AwaitFormat(*std::exchange(format_, std::nullopt)) : MakePrompt();
}

// The compiler is waited for outside of the call, which may end meanwhile.
absl::Status GenerateCall::AwaitFormat(AnswerFormat format) {
  text_cost_ = FormatBytes(format) / kTextBytesPerToken;
  call_lease().Use(text_cost_);
  const TaskOwner owner{.name = request_.tenant};
  const Clock::time_point deadline = request_.deadline != Clock::time_point::max()
                                         ? request_.deadline
                                         : arrival_ + service_.engine.limits().default_deadline;
  compiling_since_ = Clock::now();
  BeginWait();  // from here on the request is whose who ends the wait
  const absl::Status posted = CatchOutOfMemory([&] {
    const auto compile = [self = Self(), tenant = owner.name, format = std::move(format),
                          deadline] {
      auto compiled = self->Compile(tenant, format, deadline);
      if (!self->EndWait()) return;  // it has ended
      self->NoteCompiled();
      const absl::Status status = CatchOutOfMemory([&]() -> absl::Status {
        if (self->service_.state.closed()) return ServerDraining();
        if (!compiled.ok()) return self->OfFormat(compiled.status());
        self->request_.format = *std::move(compiled);
        return self->MakePrompt();
      });
      if (!status.ok()) self->EndCall(status);
    };
    return service_.format_calls.Post(owner, compile) ? absl::OkStatus() : FormatCallsFull();
  });
  return posted.ok() || !EndWait() ? absl::OkStatus() : posted;
}

absl::StatusOr<std::shared_ptr<const CompiledFormat>> GenerateCall::Compile(
    const std::string& tenant, const AnswerFormat& format, Clock::time_point deadline) {
  using Compiled = absl::StatusOr<std::shared_ptr<const CompiledFormat>>;
  return CatchOutOfMemory([&]() -> Compiled {
    (void)ETA_FAILPOINT(kGenerateCompile);
    if (!Waits() || service_.state.closed()) return absl::CancelledError();
    if (Clock::now() >= deadline) return DeadlinePassed(/*started=*/false);
    return service_.engine.formats().Compile(tenant, format, deadline);
  });
}

absl::Status GenerateCall::OfFormat(const absl::Status& status) const {
  ErrorDetail detail = GetErrorDetail(status);
  const bool of_format = detail.reason == "INVALID_FIELD" || detail.reason == "FORMAT_TOO_SLOW" ||
                         detail.reason == "FORMAT_TOO_LARGE";
  if (!format_of_tools_ || !of_format) return status;
  detail.field = "chat.tools";
  return MakeError(
      status.code(),
      absl::StrCat("chat.tools: calls of them cannot be enforced: ", std::string(status.message())),
      std::move(detail));
}

void GenerateCall::NoteCompiled() {
  const auto since = std::exchange(compiling_since_, std::nullopt);
  if (since && call_record().format) call_record().format->compile = Clock::now() - *since;
}

absl::Status GenerateCall::MakePrompt() {
  return HasTokens(request_) ? Queue() : AwaitTokenizer();
}

absl::Status GenerateCall::AwaitTokenizer() {
  const TaskOwner owner{.name = request_.tenant};
  BeginWait();  // from here on the request is whose who ends the wait
  const absl::Status posted = CatchOutOfMemory([&] {
    const auto tokenize = [self = Self()] {
      if (!self->EndWait()) return;  // it has ended
      const absl::Status status = CatchOutOfMemory([&] {
        (void)ETA_FAILPOINT(kGenerateTokenize);
        return self->service_.state.closed() ? ServerDraining() : self->Queue();
      });
      if (!status.ok()) self->EndCall(status);
    };
    return service_.tokenizer_calls.Post(owner, tokenize) ? absl::OkStatus() : TokenizerCallsFull();
  });
  // Of what was not posted whoever cancels may have made the end.
  return posted.ok() || !EndWait() ? absl::OkStatus() : posted;
}

absl::Status GenerateCall::Queue() {
  text_cost_ += TextBytes(request_) / kTextBytesPerToken;
  call_lease().Use(text_cost_);
  ASSIGN_OR_RETURN(auto prepared, service_.engine.Prepare(std::move(request_)));
  RETURN_IF_ERROR(call_lease().Charge(
      answers() * (prepared.prompt_tokens() + prepared.request.stopping.max_tokens)));
  OnPrompt(prepared);
  return QueueAnswers(std::move(prepared));
}

absl::Status GenerateCall::QueueAnswers(PreparedRequest prepared) {
  {
    const MutexLock lock(mutex_);
    left_ = answers();
    handles_.resize(answers_.size());
  }
  // A refusal gives the charge back, but for the cost of the text, when the call ends.
  place_ = service_.streams.Add(Self());
  for (size_t i = 0; i < answers_.size(); ++i) {
    const bool newest = i + 1 == answers_.size();
    PreparedRequest one = newest ? std::move(prepared) : prepared;
    if (one.request.sampling.seed) *one.request.sampling.seed += i;
    const absl::StatusOr<uint64_t> handle =
        service_.engine.Submit(std::move(one), std::shared_ptr<EventSink>(Self(), &answers_[i]));
    if (!handle.ok() && i == 0) {
      place_.Release();
      return handle.status();
    }
    if (!handle.ok()) {  // those before it end too, and then the call
      for (; i < answers_.size(); ++i) AnswerEnded(handle.status(), {});
      break;
    }
    bool cancelled;
    {
      const MutexLock lock(mutex_);
      handles_[i] = *handle;
      cancelled = cancelled_;
    }
    if (cancelled) service_.engine.Cancel(*handle);
  }
  return absl::OkStatus();
}

void GenerateCall::Started(int32_t i, StartedEvent event) {
  kv_tokens_ += event.prompt_tokens;
  OnStarted(i, std::move(event));
}

void GenerateCall::Delta(int32_t i, DeltaEvent event) {
  (void)ETA_FAILPOINT(kGenerateDelta);
  ++kv_tokens_;
  OnDelta(i, std::move(event));
}

void GenerateCall::Finished(int32_t i, FinishedEvent event) {
  OnFinished(i, event);
  AnswerEnded(absl::OkStatus(), std::move(event));
}

void GenerateCall::Failed(int32_t i, absl::Status status, FinishedEvent so_far) {
  if (absl::IsCancelled(status) && !ends_for_memory_ && OnCancelled(i, so_far)) {
    status = absl::OkStatus();
  }
  AnswerEnded(WhyCancelled(std::move(status)), std::move(so_far));
}

void GenerateCall::AnswerEnded(const absl::Status& status, FinishedEvent outcome) {
  bool fails;
  bool last;
  absl::Status end;
  FinishedEvent all;
  {
    const MutexLock lock(mutex_);
    used_ += UsedBy(outcome);
    AddOutcome(std::move(outcome), outcome_);
    fails = !status.ok() && failure_.ok();
    if (fails) {
      failure_ = status;
      cancelled_ = true;
    }
    last = --left_ == 0;
    if (last) {
      end = failure_;
      all = *std::move(outcome_);
    }
  }
  if (last) return EndAll(end, std::move(all));
  if (fails) CancelQueued();
}

void GenerateCall::EndAll(const absl::Status& status, FinishedEvent outcome) {
  int64_t used;
  {
    const MutexLock lock(mutex_);
    used = used_;
  }
  place_.Release();
  call_lease().Use(std::max(text_cost_, used));
  ErrorDetail detail = GetErrorDetail(status);
  detail.metadata["output_tokens"] = std::to_string(outcome.output_tokens);
  CallRecord& record = call_record();
  record.submitted = true;
  record.reader_behind = status.ok() || ReaderFull();
  record.outcome = std::move(outcome);
  EndCall(status.ok() ? status
                      : MakeError(status.code(), std::string(status.message()), std::move(detail)));
}

int64_t GenerateCall::kv_tokens() const {
  return ends_for_memory_ ? 0 : kv_tokens_.load();
}

void GenerateCall::EndForMemory() {
  ends_for_memory_ = true;
  Cancel(/*for_deadline=*/false);
}

void GenerateCall::Cancel(bool for_deadline) {
  if (for_deadline) deadline_passed_ = true;
  {
    const MutexLock lock(mutex_);
    cancelled_ = true;
  }
  CancelQueued();
  if (!EndWait()) return;
  NoteCompiled();
  request_ = {};  // whoever it waited for holds this object until there is an answer
  bool good = true;
  for (int32_t i = 0; i < answers(); ++i) good = OnCancelled(i, {}) && good;
  if (good) return EndCall(absl::OkStatus());
  EndCall(
      DeadlineOr(MakeError(absl::StatusCode::kCancelled, "the client cancelled the call, or left",
                           {.reason = "CLIENT_CANCELLED"})));
}

void GenerateCall::CancelQueued() {
  for (size_t i = 0;; ++i) {
    std::optional<uint64_t> handle;
    {
      const MutexLock lock(mutex_);
      if (i >= handles_.size()) return;
      handle = handles_[i];
    }
    if (handle) service_.engine.Cancel(*handle);
  }
}

absl::Status GenerateCall::DeadlineOr(absl::Status status) const {
  if (deadline_passed_) return DeadlinePassed(/*started=*/kv_tokens_ > 0);
  return status;
}

absl::Status GenerateCall::WhyCancelled(absl::Status status) const {
  if (!absl::IsCancelled(status)) return status;
  if (!ends_for_memory_) return DeadlineOr(std::move(status));
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "the answer was given up, since the server is short of memory",
                   {.reason = "MEMORY_PRESSURE", .retry_after = kMemoryRetry});
}

}  // namespace eta
