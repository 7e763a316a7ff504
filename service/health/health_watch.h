// The answers of the health service (grpc.health.v1), and the thread that finds them out.
//
// Ready: from Begin until NotReady, while a device works. Alive: while the step loop of every
// device that works moves, a device works, and new connections are answered. Neither asks how full
// the queue is: overload is answered call by call, and a restart would only make it worse. Neither
// asks for the profile store: one that is down must not take every replica out of service.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/base/threads/loop_thread.h"
#include "engine/front/engine.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/credentials.h"
#include "service/connections/acceptor.h"
#include "service/health/heartbeat.h"
#include "service/health/self_probe.h"
#include "service/log/log.h"
#include "service/options/server_options.h"
#include "service/telemetry/server_state.h"

namespace eta {

class HealthWatch {
 public:
  static constexpr char kLiveness[] = "liveness";
  static constexpr char kReadiness[] = "readiness";

  // `services` are the names that are ready when the server is. All must outlive this.
  HealthWatch(Engine& engine, ServerStateFlags& state, const ServerOptions& options,
              std::vector<std::string> services, Log& log);
  ~HealthWatch() { Stop(); }
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

  // The server listens: ready, alive, and watched from here on. Both must live until Stop.
  void Begin(std::vector<grpc::HealthCheckServiceInterface*> health, const Acceptor& acceptor,
             std::shared_ptr<grpc::ChannelCredentials> credentials);
  // For good. `why` is for the log. Thread-safe.
  void NotReady(const std::string& why);
  // No more is watched. Thread-safe.
  void Stop();

 private:
  void SetReady(bool ready);
  void Set(const std::string& name, bool serving);
  // What the thread does each period.
  void Check();
  // Why the server is not alive; empty: it is.
  std::string Trouble();

  Engine& engine_;
  ServerStateFlags& state_;
  const ServerOptions& options_;
  const std::vector<std::string> services_;
  Log& log_;
  std::vector<grpc::HealthCheckServiceInterface*> health_;
  std::unique_ptr<SelfProbe> probe_;

  // Of the thread:
  std::vector<Heartbeat> heartbeats_;  // by device
  std::string trouble_;                // as the last check found it

  Mutex mutex_;
  bool ready_ GUARDED_BY(mutex_) = false;
  std::optional<LoopThread> thread_;  // last: it uses the others
};

}  // namespace eta
