// One unary call: admitted, parsed, answered and recorded. What may block runs on a thread for
// store calls, the rest at once on gRPC's.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "service/admission.h"
#include "service/call_parts.h"
#include "service/call_track.h"
#include "service/grpc_status.h"
#include "service/store_status.h"
#include "service/wire_message.h"

namespace eta {

struct UnaryMethod {
  std::string_view name;  // a literal
  size_t max_bytes = 0;   // of its message
  bool of_store = false;  // needs the profile store, and may block
  Admission admission = Admission::kWhileOpen;
};

template <typename Request, typename Response>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // Fills of the record what it knows; the rest is there.
  using Handler =
      std::function<absl::StatusOr<Response>(const Tenant&, const Request&, CallRecord& record)>;

  // Begins the call. `handler` runs at most once, and not for a client that has left by then.
  static grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer& message, grpc::ByteBuffer* answer,
                                         const CallParts& parts, const UnaryMethod& method,
                                         Handler handler) {
    auto* const call = new UnaryCall(context, answer, parts, method.name, std::move(handler));
    const absl::Status status = call->Begin(message, method);
    if (!status.ok()) call->End(status);
    return call;
  }

  void OnDone() override {
    LiveCalls& live_calls = parts_.live_calls;
    delete this;
    live_calls.End();
  }

 private:
  UnaryCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* answer, const CallParts& parts,
            std::string_view name, Handler handler)
      : context_(context),
        answer_(answer),
        parts_(parts),
        handler_(std::move(handler)),
        track_(*context, name, parts.calls) {
    parts_.live_calls.Begin();
  }

  absl::Status Begin(const grpc::ByteBuffer& message, const UnaryMethod& method) {
    auto tenant = Admit(*context_, parts_, method.admission);
    if (!tenant.ok()) return tenant.status();
    track_.record().tenant = tenant->id();
    if (method.of_store && parts_.store == nullptr) return NoStore();
    auto request = ParseMessage<Request>(message, method.max_bytes);
    if (!request.ok()) return request.status();
    if (!method.of_store) {
      Run(*tenant, *request);
      return absl::OkStatus();
    }
    const auto run = [this, tenant = *std::move(tenant), request = *std::move(request)] {
      Run(tenant, request);
    };
    return parts_.store_calls.Post(run) ? absl::OkStatus() : StoreCallsFull();
  }

  void Run(const Tenant& tenant, const Request& request) {
    if (context_->IsCancelled()) return End(absl::CancelledError("the client left"));
    const absl::StatusOr<Response> response = handler_(tenant, request, track_.record());
    if (response.ok()) SerializeMessage(*response, *answer_);
    End(response.status());
  }

  void End(const absl::Status& status) {
    WireStatus wire = ToWireStatus(status);
    if (wire.retry_pushback) context_->AddTrailingMetadata(kRetryPushbackKey, *wire.retry_pushback);
    if (const auto parent = track_.AnsweredParent()) {
      context_->AddTrailingMetadata(kTraceParentKey, *parent);
    }
    track_.End(status);
    Finish(std::move(wire.status));
  }

  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const answer_;
  const CallParts& parts_;
  const Handler handler_;
  CallTrack track_;
};

}  // namespace eta
