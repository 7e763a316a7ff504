#include "service/generate_reactor.h"

#include <array>
#include <chrono>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/error.h"
#include "engine/request_validation.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "service/convert.h"

namespace eta {
namespace {

constexpr std::chrono::milliseconds kMemoryRetry{1000};
constexpr size_t kMaxEchoedBytes = 64;  // of a name from the request in an error's metadata

Clock::time_point SteadyDeadline(std::chrono::system_clock::time_point deadline) {
  if (deadline == std::chrono::system_clock::time_point::max()) return Clock::time_point::max();
  return Clock::now() + (deadline - std::chrono::system_clock::now());
}

std::string NewRequestId() {
  thread_local std::mt19937_64 generator{[] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }()};
  return absl::StrFormat("eta-%016x", generator());
}

}  // namespace

GenerateReactor::GenerateReactor(grpc::CallbackServerContext* context, const CallParts& parts,
                                 std::function<void()> on_done)
    : context_(context), parts_(parts), on_done_(std::move(on_done)) {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateReactor::Start(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer& message, const CallParts& parts,
    std::function<void()> on_done) {
  std::shared_ptr<GenerateReactor> reactor(new GenerateReactor(context, parts, std::move(on_done)));
  reactor->self_ = reactor;
  const absl::Status status = reactor->Submit(message);
  if (!status.ok()) reactor->End(status);
  // gRPC cannot be done before it was given the reactor, so the pointer is good.
  return reactor.get();
}

absl::Status GenerateReactor::Submit(const grpc::ByteBuffer& message) {
  deadline_ = SteadyDeadline(context_->deadline());
  if (deadline_ <= Clock::now()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "the deadline passed before the call arrived", {.reason = "DEADLINE_PASSED"});
  }
  if (parts_.memory.High()) {
    return MakeError(absl::StatusCode::kResourceExhausted, "the server is short of memory",
                     {.reason = "MEMORY_PRESSURE", .retry_after = kMemoryRetry});
  }
  absl::StatusOr<Request> request = MakeRequest(message);
  if (!request.ok()) return request.status();
  const absl::StatusOr<uint64_t> handle =
      parts_.engine.Submit(*std::move(request), shared_from_this());
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

absl::StatusOr<Request> GenerateReactor::MakeRequest(const grpc::ByteBuffer& message) {
  v1::GenerateRequest parsed;
  grpc::ByteBuffer buffer(message);
  if (!grpc::SerializationTraits<v1::GenerateRequest>::Deserialize(&buffer, &parsed).ok()) {
    return MakeError(
        absl::StatusCode::kInvalidArgument,
        "the message is no eta.v1.GenerateRequest, or one of its string fields is not UTF-8",
        {.reason = "MALFORMED_MESSAGE"});
  }
  // Known early, so that a refusal names the request too.
  if (parsed.request_id().empty()) parsed.set_request_id(NewRequestId());
  if (IsRequestId(parsed.request_id())) request_id_ = parsed.request_id();

  const std::string& served = parts_.engine.info().model_name;
  if (parsed.has_model() && parsed.model() != served) {
    ErrorDetail detail{.reason = "MODEL_NOT_FOUND", .metadata = {{"served_model", served}}};
    if (parsed.model().size() <= kMaxEchoedBytes) detail.metadata["model"] = parsed.model();
    return MakeError(absl::StatusCode::kNotFound, "model: this server does not serve that model",
                     std::move(detail));
  }
  absl::StatusOr<Request> request = ToRequest(parsed);
  if (!request.ok()) return request;
  if (request->attention.mode == AttentionMode::kProfile) {
    auto profile = parts_.profiles.Resolve(request->tenant, parsed.attention().profile());
    if (!profile.ok()) return profile.status();
    request->attention.profile = *std::move(profile);
  }
  request->deadline = deadline_;
  return request;
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
  End(absl::OkStatus());
}

void GenerateReactor::OnFailed(absl::Status status, FinishedEvent so_far) {
  ErrorDetail detail = GetErrorDetail(status);
  detail.metadata["output_tokens"] = std::to_string(so_far.output_tokens);
  End(MakeError(status.code(), std::string(status.message()), std::move(detail)));
}

bool GenerateReactor::Congested() const {
  const std::lock_guard lock(mutex_);
  return waiting_events_ >= kMaxWaitingEvents || waiting_bytes_ >= kMaxWaitingBytes;
}

void GenerateReactor::Enqueue(v1::GenerateResponse message) {
  const size_t bytes = message.ByteSizeLong();
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    if (queue_.empty() || !Merge(queue_.back().message, message)) {
      queue_.push_back({.message = std::move(message)});
    }
    queue_.back().events += 1;
    queue_.back().bytes += bytes;
    waiting_events_ += 1;
    waiting_bytes_ += bytes;
  }
  PumpLater();
}

void GenerateReactor::End(const absl::Status& status) {
  WireStatus wire = ToWireStatus(status);
  bool flushing;
  {
    const std::lock_guard lock(mutex_);
    end_ = std::move(wire);
    flushing = busy_ || !queue_.empty();
    if (flushing) ++finish_holds_;
  }
  if (!flushing) return Pump();
  flush_alarm_.Set(std::chrono::system_clock::now() + parts_.engine.limits().max_congestion,
                   [self = shared_from_this()](bool expired) mutable {
                     const auto reactor =
                         std::move(self);  // else alarm and reactor keep each other
                     if (expired) reactor->OnFlushExpired();
                   });
  ReleaseFinish();
}

void GenerateReactor::OnFlushExpired() {
  {
    const std::lock_guard lock(mutex_);
    if (!end_ || !busy_) return;
    ++finish_holds_;
  }
  context_->TryCancel();
  ReleaseFinish();
}

void GenerateReactor::ReleaseFinish() {
  {
    const std::lock_guard lock(mutex_);
    --finish_holds_;
  }
  Pump();
}

void GenerateReactor::PumpLater() {
  {
    const std::lock_guard lock(mutex_);
    if (busy_ || pump_posted_) return;  // then somebody will come and see the queue
    pump_posted_ = true;
  }
  parts_.writer.Post([self = shared_from_this()] {
    {
      const std::lock_guard lock(self->mutex_);
      self->pump_posted_ = false;
    }
    self->Pump();
  });
}

void GenerateReactor::Pump() {
  std::optional<Waiting> next;
  std::optional<WireStatus> end;
  {
    const std::lock_guard lock(mutex_);
    if (busy_ || finish_holds_ > 0) return;
    if (!queue_.empty()) {
      next = std::move(queue_.front());
      queue_.pop_front();
      waiting_events_ -= next->events;
      waiting_bytes_ -= next->bytes;
    }
    if (!next) end = std::exchange(end_, std::nullopt);
    if (!next && !end) return;
    busy_ = true;
  }
  if (next) {
    write_buffer_.Clear();
    bool own_buffer;
    grpc::SerializationTraits<v1::GenerateResponse>::Serialize(next->message, &write_buffer_,
                                                               &own_buffer);
    if (!initial_metadata_added_) {
      initial_metadata_added_ = true;
      context_->AddInitialMetadata(kRequestIdKey, request_id_);
    }
  }
  if (!end) {
    StartWrite(&write_buffer_);
    return;
  }
  // Custom initial metadata would make two answers out of a refusal: headers, then trailers, and
  // clients do not retry once they have seen headers. So a refusal names the request in its
  // trailers.
  if (!initial_metadata_added_ && !request_id_.empty()) {
    context_->AddTrailingMetadata(kRequestIdKey, request_id_);
  }
  if (end->retry_pushback) context_->AddTrailingMetadata(kRetryPushbackKey, *end->retry_pushback);
  Finish(std::move(end->status));
}

void GenerateReactor::OnWriteDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    busy_ = false;
    if (!ok) {  // OnCancel has come or will come.
      broken_ = true;
      queue_.clear();
      waiting_events_ = 0;
      waiting_bytes_ = 0;
    }
  }
  Pump();
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

void GenerateReactor::OnDone() {
  flush_alarm_.Cancel();
  on_done_();
  std::shared_ptr<GenerateReactor> self;
  {
    const std::lock_guard lock(mutex_);
    self = std::move(self_);
  }
}

}  // namespace eta
