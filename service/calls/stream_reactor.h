// A call that answers with a stream of messages, written as fast as its client reads.
//
// Messages may come from any thread; they wait here and are serialised and written by the writer,
// so that whoever made them is not held up. Messages that wait may be merged, so that a slow reader
// gets fewer of them. A mutex guards the queue; no gRPC call is made while it is held, and at most
// one thread at a time writes or finishes (`busy_`). The object keeps itself alive until gRPC is
// done with it.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
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
        track_(*context, method, service.calls) {}

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
  Clock::time_point arrival() const { return track_.arrival(); }

  // Without effect once the call ends.
  void Enqueue(Response message);
  // Finishes the call once what waits is written. Call once, last.
  void End(const absl::Status& status);
  // Whether so many messages, or so many bytes of them, wait for the reader.
  bool Waiting(int messages, size_t bytes) const;
  // Whether the reader has taken nothing of what is written for longer than `flush_timeout`.
  bool Stalled() const;
  static absl::Status ReadTooSlowly();

 private:
  struct Entry {
    Response message;
    int messages = 0;
    size_t bytes = 0;
  };

  // Makes one message of two that wait behind one another; false: they stay two.
  virtual bool Merge(Response& last, const Response& next) const = 0;

  // What became of a call that ends with `status`: not OK if nobody took the answer.
  absl::Status Outcome(const absl::Status& status) const;
  // The metadata that every answer carries.
  template <typename Add>
  void AddNames(const Add& add) const;
  // Starts the next write, or finishes the call, if none is under way and there is one to start.
  void Pump();
  // The same on the writer.
  void PumpLater();

  grpc::CallbackServerContext* const context_;
  TaskThread& writer_;
  const std::chrono::milliseconds flush_timeout_;
  const std::function<void()> on_done_;

  CallTrack track_;  // of whoever fills the record; from the end on, of the thread that set busy_
  TenantLedger::Lease lease_;  // likewise

  // Belong to the thread that set busy_.
  grpc::ByteBuffer write_buffer_;
  bool initial_metadata_added_ = false;

  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::deque<Entry> queue_;
  int waiting_messages_ = 0;
  size_t waiting_bytes_ = 0;
  bool ending_ = false;              // nothing joins the queue any more
  std::optional<absl::Status> end_;  // what to finish with once the queue is empty
  bool busy_ = false;                // a write is under way, or the call was finished
  Clock::time_point busy_since_;
  bool pump_posted_ = false;    // the writer will look at the queue
  bool broken_ = false;         // the client can no longer be written to
  bool flush_expired_ = false;  // it has ended, and the reader did not take what was left in time
  std::shared_ptr<StreamReactor> self_;

  CutOff cut_off_;  // of whoever calls End, then of gRPC's last call
};

template <typename Response>
bool StreamReactor<Response>::Waiting(int messages, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return waiting_messages_ >= messages || waiting_bytes_ >= bytes;
}

template <typename Response>
bool StreamReactor<Response>::Stalled() const {
  const std::lock_guard lock(mutex_);
  return busy_ && Clock::now() - busy_since_ > flush_timeout_;
}

template <typename Response>
absl::Status StreamReactor<Response>::ReadTooSlowly() {
  return MakeError(absl::StatusCode::kResourceExhausted, "the client read too slowly",
                   {.reason = "SLOW_CONSUMER"});
}

template <typename Response>
void StreamReactor<Response>::Enqueue(Response message) {
  const size_t bytes = message.ByteSizeLong();
  {
    const std::lock_guard lock(mutex_);
    if (broken_ || ending_) return;
    if (queue_.empty() || !Merge(queue_.back().message, message)) {
      queue_.push_back({.message = std::move(message)});
    }
    queue_.back().messages += 1;
    queue_.back().bytes += bytes;
    waiting_messages_ += 1;
    waiting_bytes_ += bytes;
  }
  PumpLater();
}

template <typename Response>
void StreamReactor<Response>::End(const absl::Status& status) {
  bool flushing;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    flushing = busy_ || !queue_.empty();
  }
  // Before anybody can finish the call.
  if (flushing) {
    cut_off_.Begin(*context_, flush_timeout_, [this] {
      const std::lock_guard lock(mutex_);
      flush_expired_ = true;
    });
  }
  {
    const std::lock_guard lock(mutex_);
    end_ = status;
  }
  Pump();
}

template <typename Response>
void StreamReactor<Response>::PumpLater() {
  {
    const std::lock_guard lock(mutex_);
    if (busy_ || pump_posted_) return;  // then somebody will come and see the queue
    pump_posted_ = true;
  }
  writer_.Post([self = this->shared_from_this()] {
    {
      const std::lock_guard lock(self->mutex_);
      self->pump_posted_ = false;
    }
    self->Pump();
  });
}

template <typename Response>
void StreamReactor<Response>::Pump() {
  std::optional<Entry> next;
  std::optional<absl::Status> end;
  {
    const std::lock_guard lock(mutex_);
    if (busy_) return;
    if (!queue_.empty()) {
      next = std::move(queue_.front());
      queue_.pop_front();
      waiting_messages_ -= next->messages;
      waiting_bytes_ -= next->bytes;
    }
    if (!next) end = std::exchange(end_, std::nullopt);
    if (!next && !end) return;
    busy_ = true;
    busy_since_ = Clock::now();
  }
  if (next) {
    SerializeMessage(next->message, write_buffer_);
    if (!initial_metadata_added_) {
      AddNames([this](const std::string& key, const std::string& value) {
        context_->AddInitialMetadata(key, value);
      });
    }
    initial_metadata_added_ = true;
  }
  if (!end) {
    StartWrite(&write_buffer_);
    return;
  }
  // Custom initial metadata would make two answers out of a refusal: headers, then trailers, and
  // clients do not retry once they have seen headers. So a refusal names the request in its
  // trailers.
  if (!initial_metadata_added_) {
    AddNames([this](const std::string& key, const std::string& value) {
      context_->AddTrailingMetadata(key, value);
    });
  }
  WireStatus wire = ToWireStatus(*end);
  if (wire.retry_pushback) context_->AddTrailingMetadata(kRetryPushbackKey, *wire.retry_pushback);
  lease_.Release();
  track_.End(Outcome(*end));
  Finish(std::move(wire.status));
}

template <typename Response>
template <typename Add>
void StreamReactor<Response>::AddNames(const Add& add) const {
  if (!request_id().empty()) add(kRequestIdKey, request_id());
  if (const auto parent = track_.AnsweredParent()) add(kTraceParentKey, *parent);
}

template <typename Response>
absl::Status StreamReactor<Response>::Outcome(const absl::Status& status) const {
  if (!status.ok()) return status;
  {
    const std::lock_guard lock(mutex_);
    if (flush_expired_) return ReadTooSlowly();
  }
  if (!context_->IsCancelled()) return status;
  if (CancelledForDeadline(*context_, arrival())) {
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "the deadline passed before the client had the whole answer",
                     {.reason = "DEADLINE_DECODING"});
  }
  return MakeError(absl::StatusCode::kCancelled, "the client left before it had the whole answer",
                   {.reason = "CLIENT_CANCELLED"});
}

template <typename Response>
void StreamReactor<Response>::OnWriteDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    busy_ = false;
    if (!ok) {  // OnCancel has come or will come.
      broken_ = true;
      queue_.clear();
      waiting_messages_ = 0;
      waiting_bytes_ = 0;
    }
  }
  Pump();
}

template <typename Response>
void StreamReactor<Response>::OnDone() {
  cut_off_.End();
  on_done_();
  std::shared_ptr<StreamReactor> self;
  {
    const std::lock_guard lock(mutex_);
    self = std::move(self_);
  }
}

}  // namespace eta
