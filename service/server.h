// The gRPC server around an engine: listening, health, drain.
//
// Health (grpc.health.v1): "readiness", "" and the names of the services are SERVING from Start to
// Drain while a device works; "liveness" is SERVING while the step loop of every device that works
// moves. Trouble of the profile store changes neither: a store that is down must not take every
// replica out of service.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "grpcpp/server.h"
#include "service/call_parts.h"
#include "service/eta_service.h"
#include "service/profile_service.h"
#include "service/server_options.h"

namespace eta {

// What a server stands on; must outlive it.
struct ServerParts {
  Engine& engine;
  ProfileStore* profiles = nullptr;  // null: none, and what needs one says so
  Calibrator calibrate;              // set where there is a store
};

class Server {
 public:
  // Listens and serves. INVALID_ARGUMENT for options that make no sense or are not safe,
  // UNAVAILABLE if the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const ServerParts& parts);
  // Ends what is left at once.
  ~Server();

  // Where it listens, with the port that was chosen if 0 was asked for.
  const std::string& address() const { return address_; }

  // Stops taking calls and returns when those that run have ended, when drain_timeout has passed,
  // or soon after HurryDrain. Call once.
  void Drain();
  // From any thread, before or during Drain: what runs ends with UNAVAILABLE now.
  void HurryDrain();

 private:
  Server(const ServerOptions& options, const ServerParts& parts);
  absl::Status Listen();
  void SetReady(bool ready);
  void Watch();

  const ServerOptions options_;
  Engine& engine_;

  LiveCalls live_calls_;
  MemoryPressure memory_;
  TaskThread writer_;
  std::unique_ptr<ProfileCache> profiles_;
  WorkerPool store_calls_;
  Calibrations calibrations_;
  WorkerPool calibration_threads_;
  const CallParts parts_;
  EtaService service_;
  ProfileService profile_service_;

  std::string address_;
  std::unique_ptr<grpc::Server> server_;

  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_:
  bool stopping_ = false;
  bool hurry_ = false;

  std::thread watchdog_;
};

}  // namespace eta
