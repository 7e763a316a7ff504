// One Generate call: turns the message into a request, submits it, and writes the engine's events
// to the client as fast as the client reads.
//
// Three kinds of threads meet here: gRPC's (start, write done, cancel, done), the engine's step
// threads (events), and the writer, which serialises and writes what the step thread left. A mutex
// guards the queue between them; no gRPC call is made while it is held, and at most one thread at a
// time writes or finishes (`busy_`). The object keeps itself alive until gRPC is done with it, the
// engine until its last event.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "eta/v1/generate.pb.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "service/grpc_status.h"
#include "service/memory_pressure.h"
#include "service/profile_source.h"
#include "service/task_thread.h"

namespace eta {

// What every call of the server uses; must outlive all of them.
struct CallParts {
  Engine& engine;
  const ProfileSource& profiles;
  MemoryPressure& memory;
  TaskThread& writer;
};

inline constexpr char kRequestIdKey[] = "x-eta-request-id";

class GenerateReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                              public EventSink,
                              public std::enable_shared_from_this<GenerateReactor> {
 public:
  // Events and bytes that may wait for the reader before the engine is asked to pause the request.
  static constexpr int kMaxWaitingEvents = 16;
  static constexpr size_t kMaxWaitingBytes = 256 * 1024;

  // Begins the call. `on_done` runs once, last of all, when gRPC has let go of the call.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& message,
                                                           const CallParts& parts,
                                                           std::function<void()> on_done);

  // EventSink, on the engine's step thread.
  void OnStarted(StartedEvent event) override;
  void OnPrefill(PrefillEvent event) override;
  void OnDelta(DeltaEvent event) override;
  void OnFinished(FinishedEvent event) override;
  void OnFailed(absl::Status status, FinishedEvent so_far) override;
  bool Congested() const override;

  // ServerWriteReactor, on threads of gRPC.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  struct Waiting {
    v1::GenerateResponse message;
    int events = 0;
    size_t bytes = 0;
  };

  GenerateReactor(grpc::CallbackServerContext* context, const CallParts& parts,
                  std::function<void()> on_done);

  absl::Status Submit(const grpc::ByteBuffer& message);
  absl::StatusOr<Request> MakeRequest(const grpc::ByteBuffer& message);
  void Enqueue(v1::GenerateResponse message);
  void End(const absl::Status& status);
  // The engine is done, the reader did not take what was left in time.
  void OnFlushExpired();
  void ReleaseFinish();
  // Starts the next write, or finishes the call, if none is under way and there is one to start.
  void Pump();
  // The same on the writer.
  void PumpLater();

  grpc::CallbackServerContext* const context_;
  const CallParts parts_;
  const std::function<void()> on_done_;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::string request_id_;  // fixed before the request is submitted

  // Belong to the thread that set busy_.
  grpc::ByteBuffer write_buffer_;
  bool initial_metadata_added_ = false;

  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::deque<Waiting> queue_;
  int waiting_events_ = 0;
  size_t waiting_bytes_ = 0;
  std::optional<WireStatus> end_;  // what to finish with once the queue is empty
  bool busy_ = false;              // a write is under way, or the call was finished
  bool pump_posted_ = false;       // the writer will look at the queue
  int finish_holds_ = 0;           // threads that still use the context or the alarm
  bool broken_ = false;            // the client can no longer be written to
  bool cancelled_ = false;
  std::optional<uint64_t> handle_;
  std::shared_ptr<GenerateReactor> self_;
  grpc::Alarm flush_alarm_;
};

}  // namespace eta
