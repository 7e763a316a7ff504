// The end of a failed call, which may have to wait for its turn (refusal_pacer.h).
#pragma once

#include <functional>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "service/limits/refusal_pacer.h"
#include "service/telemetry/call_record.h"

namespace eta {

class HeldEnd {
 public:
  // `message_bytes` of the call.
  HeldEnd(RefusalPacer& pacer, size_t message_bytes)
      : pacer_(pacer), message_bytes_(message_bytes) {}

  // Runs `end`, which tells gRPC that the call ended with `status` and which the call may not
  // outlive: at once, or later on a thread of gRPC's. It does not wait for longer than half of what
  // is left until the call's deadline, so that the client still hears why. Notes the wait in
  // `record`. Call once, last.
  void Begin(const grpc::ServerContextBase& context, const absl::Status& status, CallRecord& record,
             std::function<void()> end);
  // From OnCancel: waits no more.
  void Cut();

 private:
  RefusalPacer& pacer_;
  const size_t message_bytes_;
  std::optional<RefusalPacer::Hold> hold_;
  std::mutex mutex_;
  bool waits_ = false;  // guarded by mutex_
  bool cut_ = false;    // likewise
  grpc::Alarm alarm_;
};

}  // namespace eta
