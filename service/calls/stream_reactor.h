// A call that answers with a stream of messages, written as fast as its client reads.
//
// Messages may come from any thread; they wait in the queue (outbound_queue.h) and are serialised
// and written by the writer, so that whoever made them is not held up. No gRPC call is made while
// the queue is locked, and whoever has its move is the only one who writes or finishes. The object
// keeps itself alive until gRPC is done with it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "engine/base/error.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "service/calls/admission.h"
#include "service/calls/cut_off.h"
#include "service/calls/outbound_queue.h"
#include "service/calls/records/call_track.h"
#include "service/calls/service_context.h"
#include "service/limits/tenant_ledger.h"
#include "service/wire/grpc_status.h"
#include "service/wire/wire_message.h"

namespace eta {

inline constexpr char kRequestIdKey[] = "x-eta-request-id";

template <typename Response>
class StreamReactor : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                      public std::enable_shared_from_this<StreamReactor<Response>> {
 public:
  // ServerWriteReactor, on threads of gRPC.
  // Whoever overrides this calls it first.
  void OnCancel() override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 protected:
  // `method` is a literal: the method's name. Once the call has ended, a client that does not take
  // what waits within `flush_timeout` is cut off. `on_done` runs once, last of all, when gRPC has
  // let go of the call.
  StreamReactor(grpc::CallbackServerContext* context, const ServiceContext& service,
                std::string_view method, std::chrono::milliseconds flush_timeout,
                std::function<void()> on_done)
      : context_(context),
        writer_(service.writer),
        flush_timeout_(flush_timeout),
        on_done_(std::move(on_done)),
        track_(*context, method, service.options, service.calls),
        queue_([this](Response& last, const Response& next) { return Merge(last, next); }) {}

  // First of all, before gRPC gets the object.
  void KeepAlive() { self_ = this->shared_from_this(); }
  // Before the first message or the end: names the call in its metadata.
  void SetRequestId(const std::string& id) { record().request_id = id; }
  const std::string& request_id() const { return track_.record().request_id; }
  // What is recorded of the call when it ends; to be filled before End, by one thread at a time.
  CallRecord& record() { return track_.record(); }
  // What the call holds of its tenant's limits; given back just before the client sees the end, so
  // that it may call again at once. As record().
  TenantLedger::Lease& lease() { return lease_; }
  const grpc::CallbackServerContext& context() const { return *context_; }

  // Before End: metadata that follows the answer.
  void AddTrailer(const std::string& key, const std::string& value) {
    context_->AddTrailingMetadata(key, value);
  }
  // Before End: what is recorded of a call whose client is told OK.
  void RecordAs(absl::Status status) { recorded_ = std::move(status); }

  // Sends the metadata that comes before the first message, where that may be long in coming.
  // Before anything is enqueued.
  void SendInitialMetadata();
  // Without effect once the call ends.
  void Enqueue(Response message);
  // Finishes the call once what waits is written. Call once, last.
  void End(const absl::Status& status);
  // As much waits for the reader as may.
  bool Full() const { return queue_.Full(); }
  // The reader has read nothing of what is written for longer than `flush_timeout`.
  bool Stalled() const { return queue_.Stalled(flush_timeout_); }
  static absl::Status ReadTooSlowly();
  // Of a call that gRPC has cancelled: whether its deadline had passed when the cancel came,
  // however late this is asked.
  bool EndsForDeadline();
  // Likewise: how a call ends that lasts until somebody ends it.
  absl::Status WhyCancelled();

 private:
  enum class Cancelled : uint8_t { kNot, kEarly, kForDeadline };

  // Makes one message of two that wait behind one another; false: they stay two.
  virtual bool Merge(Response& last, const Response& next) const = 0;

  // What became of a call that ends with `status`: not OK if nobody took the answer.
  absl::Status Outcome(const absl::Status& status);
  // The metadata that every answer carries.
  template <typename Add>
  void AddNames(const Add& add) const;
  void AddInitialNames();
  // Starts the next write, or finishes the call, if none is under way and there is one to start.
  void Pump();
  void Write(const Response& message);
  void FinishWith(const absl::Status& status);

  grpc::CallbackServerContext* const context_;
  TaskThread& writer_;
  const std::chrono::milliseconds flush_timeout_;
  const std::function<void()> on_done_;

  CallTrack track_;  // of whoever fills the record; from the end on, of whoever has the move
  TenantLedger::Lease lease_;  // likewise
  absl::Status recorded_;      // likewise; OK: what the client is told

  OutboundQueue<Response> queue_;
  // Of whoever has the move:
  grpc::ByteBuffer write_buffer_;
  bool initial_metadata_added_ = false;

  std::atomic<Cancelled> cancelled_ = Cancelled::kNot;
  std::atomic<bool> flush_expired_ = false;  // the reader did not read what was left in time
  CutOff cut_off_;                           // of whoever calls End, then of gRPC's last call
  std::shared_ptr<StreamReactor> self_;      // of KeepAlive, then of gRPC's last call
};

template <typename Response>
absl::Status StreamReactor<Response>::ReadTooSlowly() {
  return MakeError(absl::StatusCode::kResourceExhausted, "the client read too slowly",
                   {.reason = "SLOW_CONSUMER"});
}

template <typename Response>
void StreamReactor<Response>::Enqueue(Response message) {
  const size_t bytes = message.ByteSizeLong();
  if (!queue_.Push(std::move(message), bytes)) return;
  writer_.Post([self = this->shared_from_this()] {
    self->queue_.Posted();
    self->Pump();
  });
}

template <typename Response>
void StreamReactor<Response>::End(const absl::Status& status) {
  // Before anybody can finish the call.
  if (queue_.Close()) {
    cut_off_.Begin(*context_, flush_timeout_, [this] { flush_expired_ = true; });
  }
  queue_.SetEnd(status);
  Pump();
}

template <typename Response>
void StreamReactor<Response>::Pump() {
  const auto move = queue_.Next();
  if (!move) return;
  if (move->message) {
    Write(*move->message);
  } else {
    FinishWith(*move->end);
  }
}

template <typename Response>
void StreamReactor<Response>::Write(const Response& message) {
  SerializeMessage(message, write_buffer_);
  AddInitialNames();
  StartWrite(&write_buffer_);
}

template <typename Response>
void StreamReactor<Response>::AddInitialNames() {
  if (std::exchange(initial_metadata_added_, true)) return;
  AddNames([this](const std::string& key, const std::string& value) {
    context_->AddInitialMetadata(key, value);
  });
}

template <typename Response>
void StreamReactor<Response>::SendInitialMetadata() {
  AddInitialNames();
  StartSendInitialMetadata();
}

template <typename Response>
void StreamReactor<Response>::FinishWith(const absl::Status& status) {
  // Custom initial metadata would make two answers out of a refusal: headers, then trailers, and
  // clients do not retry once they have seen headers. So a refusal names the request in its
  // trailers.
  if (!initial_metadata_added_) {
    AddNames([this](const std::string& key, const std::string& value) {
      context_->AddTrailingMetadata(key, value);
    });
  }
  WireStatus wire = ToWireStatus(status);
  if (wire.retry_pushback) context_->AddTrailingMetadata(kRetryPushbackKey, *wire.retry_pushback);
  lease_.Release();
  track_.End(Outcome(status));
  Finish(std::move(wire.status));
}

template <typename Response>
template <typename Add>
void StreamReactor<Response>::AddNames(const Add& add) const {
  if (!request_id().empty()) add(kRequestIdKey, request_id());
  if (const auto parent = track_.AnsweredParent()) add(kTraceParentKey, *parent);
}

template <typename Response>
absl::Status StreamReactor<Response>::Outcome(const absl::Status& status) {
  if (!status.ok()) return status;
  if (!recorded_.ok()) return recorded_;
  if (flush_expired_) return ReadTooSlowly();
  if (!context_->IsCancelled()) return status;
  if (EndsForDeadline()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "the deadline passed before the client had the whole answer",
                     {.reason = "DEADLINE_DECODING"});
  }
  return MakeError(absl::StatusCode::kCancelled, "the client left before it had the whole answer",
                   {.reason = "CLIENT_CANCELLED"});
}

template <typename Response>
bool StreamReactor<Response>::EndsForDeadline() {
  Cancelled known = Cancelled::kNot;
  const auto now = CancelledForDeadline(*context_) ? Cancelled::kForDeadline : Cancelled::kEarly;
  if (cancelled_.compare_exchange_strong(known, now)) known = now;
  return known == Cancelled::kForDeadline;
}

template <typename Response>
absl::Status StreamReactor<Response>::WhyCancelled() {
  if (!EndsForDeadline()) return absl::CancelledError("the client cancelled the call, or left");
  return MakeError(absl::StatusCode::kDeadlineExceeded, "the deadline passed",
                   {.reason = "DEADLINE_DECODING"});
}

template <typename Response>
void StreamReactor<Response>::OnCancel() {
  EndsForDeadline();
}

template <typename Response>
void StreamReactor<Response>::OnWriteDone(bool ok) {
  queue_.Written(ok);  // not ok: OnCancel has come or will come
  Pump();
}

template <typename Response>
void StreamReactor<Response>::OnDone() {
  cut_off_.End();
  on_done_();
  const std::shared_ptr<StreamReactor> self = std::move(self_);  // goes with this call
}

}  // namespace eta
