// The service of proto/eta/v1/generate.proto. Holds no state but a count of the calls that live;
// every call is a reactor of its own. Methods take raw bytes, so that a message which does not
// parse is answered by us (INVALID_ARGUMENT) and not by the library.
#pragma once

#include <condition_variable>
#include <mutex>

#include "engine/engine.h"
#include "eta/v1/generate.grpc.pb.h"
#include "service/generate_reactor.h"
#include "service/memory_pressure.h"
#include "service/profile_source.h"
#include "service/task_thread.h"

namespace eta {

class EtaService final
    : public v1::EtaService::WithRawCallbackMethod_Generate<v1::EtaService::Service> {
 public:
  // Engine and profiles must outlive every call: see WaitUntilIdle.
  EtaService(Engine& engine, const ProfileSource& profiles, const MemoryPressureOptions& memory)
      : memory_(memory), parts_{engine, profiles, memory_, writer_} {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* message) override;

  // Returns when no call lives, at `deadline` at the latest; true if none lives.
  bool WaitUntilIdle(Clock::time_point deadline);

 private:
  void OnCallDone();

  MemoryPressure memory_;
  TaskThread writer_;
  const CallParts parts_;

  std::mutex mutex_;
  std::condition_variable idle_;
  int live_calls_ = 0;  // guarded by mutex_
};

}  // namespace eta
