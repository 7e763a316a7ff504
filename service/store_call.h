// One unary call about stored profiles: checked on gRPC's thread, carried out on a thread for store
// calls, which may block.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "service/admission.h"
#include "service/call_parts.h"
#include "service/grpc_status.h"
#include "service/store_status.h"
#include "service/wire_message.h"

namespace eta {

template <typename Request, typename Response>
class StoreCall final : public grpc::ServerUnaryReactor {
 public:
  using Handler = std::function<absl::StatusOr<Response>(const Tenant&, const Request&)>;

  // Begins the call. `handler` runs at most once, and not for a client that has left by then.
  static grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer& message, grpc::ByteBuffer* answer,
                                         const CallParts& parts, size_t max_bytes,
                                         Handler handler) {
    auto* const call = new StoreCall(context, answer, parts, std::move(handler));
    const absl::Status status = call->Begin(message, max_bytes);
    if (!status.ok()) call->End(status);
    return call;
  }

  void OnDone() override {
    LiveCalls& live_calls = parts_.live_calls;
    delete this;
    live_calls.End();
  }

 private:
  StoreCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* answer, const CallParts& parts,
            Handler handler)
      : context_(context), answer_(answer), parts_(parts), handler_(std::move(handler)) {
    parts_.live_calls.Begin();
  }

  absl::Status Begin(const grpc::ByteBuffer& message, size_t max_bytes) {
    auto tenant = Admit(*context_, parts_.memory, parts_.options.tenant_header);
    if (!tenant.ok()) return tenant.status();
    if (parts_.store == nullptr) return NoStore();
    auto request = ParseMessage<Request>(message, max_bytes);
    if (!request.ok()) return request.status();
    const auto run = [this, tenant = *std::move(tenant), request = *std::move(request)] {
      Run(tenant, request);
    };
    return parts_.store_calls.Post(run) ? absl::OkStatus() : StoreCallsFull();
  }

  void Run(const Tenant& tenant, const Request& request) {
    if (context_->IsCancelled()) return End(absl::CancelledError("the client left"));
    const absl::StatusOr<Response> response = handler_(tenant, request);
    if (response.ok()) SerializeMessage(*response, *answer_);
    End(response.status());
  }

  void End(const absl::Status& status) {
    WireStatus wire = ToWireStatus(status);
    if (wire.retry_pushback) context_->AddTrailingMetadata(kRetryPushbackKey, *wire.retry_pushback);
    Finish(std::move(wire.status));
  }

  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const answer_;
  const CallParts& parts_;
  const Handler handler_;
};

}  // namespace eta
