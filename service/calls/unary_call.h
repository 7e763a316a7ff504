// One unary call: admitted, parsed, paid for, answered and recorded. What may block runs on a
// thread for store calls, what takes long on one that makes tokens, the rest at once on gRPC's. An
// answer that is not taken in time is cut off.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/status_macros.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "service/calls/admission.h"
#include "service/calls/cut_off.h"
#include "service/calls/records/call_track.h"
#include "service/calls/service_context.h"
#include "service/limits/tenant_ledger.h"
#include "service/wire/grpc_status.h"
#include "service/wire/store_status.h"
#include "service/wire/wire_message.h"

namespace eta {

struct UnaryMethod {
  std::string_view name;  // a literal
  Roles needed;           // any of them
  size_t max_bytes = 0;   // of its message
  bool of_store = false;  // needs the profile store, and may block
  bool of_text = false;   // makes tokens of text, or text of tokens
  Admission admission = Admission::kWhileOpen;
  std::string_view service = kEtaService;  // that declares it
};

template <typename Request, typename Response>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // Fills of the record what it knows; the rest is there.
  using Handler =
      std::function<absl::StatusOr<Response>(const Caller&, const Request&, CallRecord& record)>;
  // Of the tenant's budget, whatever becomes of the call.
  using Cost = int64_t (*)(const Request&);

  // Begins the call. `handler` runs at most once, and not for a client that has left by then.
  static grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer& message, grpc::ByteBuffer* answer,
                                         const ServiceContext& service, const UnaryMethod& method,
                                         Handler handler, Cost cost = nullptr) {
    auto* const call = new UnaryCall(context, answer, service, method.name, std::move(handler));
    const absl::Status status =
        CatchOutOfMemory([&] { return call->Begin(message, method, cost); });
    if (!status.ok()) call->End(status);
    return call;
  }

  void OnDone() override {
    LiveCalls& live_calls = service_.live_calls;
    cut_off_.End();
    delete this;
    live_calls.End();
  }

 private:
  // For as many bytes of an answer a client may take as long as for any.
  static constexpr size_t kBytesOfPatience = size_t{1} << 20;

  UnaryCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* answer,
            const ServiceContext& service, std::string_view name, Handler handler)
      : context_(context),
        answer_(answer),
        service_(service),
        handler_(std::move(handler)),
        track_(*context, name, service.options, service.calls) {
    service_.live_calls.Begin();
  }

  absl::Status Begin(const grpc::ByteBuffer& message, const UnaryMethod& method, Cost cost) {
    track_.record().service = method.service;
    ASSIGN_OR_RETURN(auto caller,
                     Admit(*context_, service_, method.needed, track_.record(), method.admission));
    if (method.admission != Admission::kAlways) {
      ASSIGN_OR_RETURN(lease_, service_.ledger.Enter(caller.tenant));
    }
    if (method.of_store && service_.store == nullptr) return NoStore();
    ASSIGN_OR_RETURN(auto request, ParseMessage<Request>(message, method.max_bytes));
    if (cost != nullptr) {
      const int64_t tokens = cost(request);
      RETURN_IF_ERROR(lease_.Charge(tokens));
      lease_.Use(tokens);
    }
    if (!method.of_store && !method.of_text) {
      Run(caller, request);
      return absl::OkStatus();
    }
    const TaskOwner owner = OwnerOf(caller);
    const auto run = [this, caller = std::move(caller), request = std::move(request)] {
      Run(caller, request);
    };
    if (method.of_text) {
      return service_.tokenizer_calls.Post(owner, run) ? absl::OkStatus() : TokenizerCallsFull();
    }
    return service_.store_calls.Post(owner, run) ? absl::OkStatus() : StoreCallsFull();
  }

  void Run(const Caller& caller, const Request& request) {
    if (context_->IsCancelled()) return End(absl::CancelledError("the client left"));
    End(CatchOutOfMemory([&] { return Answer(caller, request); }));
  }

  absl::Status Answer(const Caller& caller, const Request& request) {
    ASSIGN_OR_RETURN(const Response response, handler_(caller, request, track_.record()));
    SerializeMessage(response, *answer_);
    AwaitReader();
    return absl::OkStatus();
  }

  // gRPC holds an answer until its client opens the window. How much may be held until the call is
  // cut off: service/DEFENCES.md, "Answers that nobody reads".
  void AwaitReader() {
    const auto patience = service_.engine.limits().max_congestion *
                          static_cast<int64_t>(1 + answer_->Length() / kBytesOfPatience);
    cut_off_.Begin(*context_, patience, [&count = service_.answers_cut_off] { ++count; });
  }

  void End(const absl::Status& status) {
    WireStatus wire = ToWireStatus(status);
    if (wire.retry_pushback) context_->AddTrailingMetadata(kRetryPushbackKey, *wire.retry_pushback);
    if (const auto parent = track_.AnsweredParent()) {
      context_->AddTrailingMetadata(kTraceParentKey, *parent);
    }
    lease_.Release();
    track_.End(status);
    Finish(std::move(wire.status));
  }

  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const answer_;
  const ServiceContext& service_;
  const Handler handler_;
  CallTrack track_;
  TenantLedger::Lease lease_;  // until the answer is on its way: the client may call again at once
  CutOff cut_off_;
};

}  // namespace eta
