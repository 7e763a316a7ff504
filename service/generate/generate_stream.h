// A call of one protocol that answers with a stream of `Response`: what the stream of messages
// (stream_reactor.h) and the requests of the call (generate_call.h) have of each other.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "engine/base/out_of_memory.h"
#include "service/calls/stream_reactor.h"
#include "service/generate/generate_call.h"

namespace eta {

template <typename Response>
class GenerateStream : public StreamReactor<Response>, public GenerateCall {
 public:
  void OnCancel() override {
    StreamReactor<Response>::OnCancel();
    Cancel(/*for_deadline=*/this->EndsForDeadline());
  }

 protected:
  GenerateStream(grpc::CallbackServerContext* context, const ServiceContext& service,
                 std::function<void()> on_done)
      : StreamReactor<Response>(context, service, "Generate",
                                service.engine.limits().max_congestion, std::move(on_done)),
        GenerateCall(service) {}

  // Reads the message and begins, by `begin`; where that fails, the call ends.
  template <typename Begin>
  void Run(const Begin& begin) {
    this->KeepAlive();
    const absl::Status status = CatchOutOfMemory(begin);
    if (status.ok()) return;
    EndWait();
    EndCall(status);
  }

  void EndCall(const absl::Status& status) override { this->End(status); }

 private:
  std::shared_ptr<GenerateCall> Self() override {
    return std::static_pointer_cast<GenerateStream>(this->shared_from_this());
  }
  CallRecord& call_record() override { return this->record(); }
  TenantLedger::Lease& call_lease() override { return this->lease(); }
  bool ReaderFull() const override { return this->Full(); }
};

}  // namespace eta
