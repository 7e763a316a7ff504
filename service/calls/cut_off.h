// The end of a call whose client does not take its answer: cancelled when a time has passed.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "engine/base/mutex.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"

namespace eta {

class CutOff {
 public:
  // Once at most, before gRPC is told to finish the call: after `patience` `on_cut` runs and the
  // call is cancelled, unless it is over by then.
  void Begin(grpc::ServerContextBase& context, std::chrono::milliseconds patience,
             std::function<void()> on_cut) {
    {
      const MutexLock lock(call_->mutex);
      call_->context = &context;
    }
    alarm_.Set(std::chrono::system_clock::now() + patience,
               [call = call_, on_cut = std::move(on_cut)](bool expired) {
                 const MutexLock lock(call->mutex);
                 if (!expired || call->context == nullptr) return;
                 on_cut();
                 // OnDone, which takes the lock too, has a thread of its own (gRPC's executor).
                 call->context->TryCancel();
               });
  }
  // From OnDone: the context goes, nothing is cancelled any more.
  void End() {
    {
      const MutexLock lock(call_->mutex);
      call_->context = nullptr;
    }
    alarm_.Cancel();
  }

 private:
  struct Call {
    Mutex mutex;
    grpc::ServerContextBase* context GUARDED_BY(mutex) = nullptr;  // null: the call is over
  };

  // The alarm's own: it may outlive this object.
  const std::shared_ptr<Call> call_ = std::make_shared<Call>();
  grpc::Alarm alarm_;
};

}  // namespace eta
