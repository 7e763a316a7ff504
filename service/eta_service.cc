#include "service/eta_service.h"

namespace eta {

grpc::ServerWriteReactor<grpc::ByteBuffer>* EtaService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* message) {
  {
    const std::lock_guard lock(mutex_);
    ++live_calls_;
  }
  return GenerateReactor::Start(context, *message, parts_, [this] { OnCallDone(); });
}

void EtaService::OnCallDone() {
  // Notified under the lock: whoever waits may destroy this object as soon as it has the lock.
  const std::lock_guard lock(mutex_);
  if (--live_calls_ == 0) idle_.notify_all();
}

bool EtaService::WaitUntilIdle(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, deadline, [this] { return live_calls_ == 0; });
}

}  // namespace eta
