// The gRPC server around an engine: listening, health, drain.
//
// Health (grpc.health.v1): health_watch.h. A stop goes: not ready; calls are still taken for
// drain_delay; then they are refused with UNAVAILABLE (DRAINING), all but Stats and Admin, while
// those that run have drain_timeout to end; what is left ends with UNAVAILABLE.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "engine/front/engine.h"
#include "grpcpp/server.h"
#include "service/admin/admin_service.h"
#include "service/connections/acceptor.h"
#include "service/health/health_listener.h"
#include "service/health/health_watch.h"
#include "service/identity/security.h"
#include "service/log/log.h"
#include "service/options/server_options.h"
#include "service/profiles/profile_service.h"
#include "service/server/call_resources.h"
#include "service/server/eta_service.h"
#include "service/server/vllm_listener.h"
#include "service/stats/server_status.h"
#include "service/stats/stats_watchers.h"

namespace eta {

class Server {
 public:
  // INVALID_ARGUMENT, naming the flag, for options that make no sense or are not safe.
  static absl::Status Check(const ServerOptions& options, const Limits& limits);
  // Listens and serves. INVALID_ARGUMENT for options that make no sense or are not safe,
  // UNAVAILABLE if the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const ServerContext& context);
  // Ends what is left at once.
  ~Server();

  // Where it listens, with the port that was chosen if 0 was asked for.
  const std::string& address() const { return acceptor_.address(); }
  // Where it answers health checks besides; null: nowhere.
  const HealthListener* health_listener() const { return health_listener_.get(); }
  // Where gateways reach it, one for each of vllm_listen.
  const std::vector<std::unique_ptr<VllmListener>>& vllm_listeners() const {
    return vllm_listeners_;
  }

  // How things stand; any thread.
  ServerStatus Status() const;
  // Whether there is work and no step of a device that works has ended for stall_timeout, so that
  // liveness fails; any thread.
  bool stalled() const { return resources_.state.stalled(); }

  // Stops taking calls and returns when those that run have ended, when drain_timeout has passed,
  // or soon after HurryDrain. Call once.
  void Drain();
  // From any thread, before or during Drain: what runs ends with UNAVAILABLE now.
  void HurryDrain();

 private:
  Server(const ServerOptions& options, const ServerContext& context, Security security);
  absl::Status Listen();
  absl::Status StartGrpc();
  absl::Status StartGateways();
  absl::Status StartHealth();
  // Begins to find out who has the default profile, where there is one, and to say so.
  void AskDefaultProfile();

  // The steps of Drain: calls are still taken; what runs ends; what has ended is read.
  void AwaitDrainDelay();
  void EndWork(Clock::time_point deadline);
  void EndWatches();
  void AwaitCalls(Clock::time_point deadline);
  void CloseTransport(std::chrono::milliseconds grace);
  bool Hurried() const;

  const ServerOptions options_;
  Engine& engine_;
  Log& log_;

  Security security_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // uses security_
  Acceptor acceptor_;
  CallResources resources_;
  const ServiceContext& context_;  // of resources_
  StatsWatchers watchers_;
  EtaService service_;
  ProfileService profile_service_;
  AdminService admin_service_;
  HealthWatch health_;

  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<VllmListener>> vllm_listeners_;
  std::unique_ptr<HealthListener> health_listener_;

  mutable Mutex mutex_;
  CondVar wake_;
  bool hurry_ GUARDED_BY(mutex_) = false;
};

}  // namespace eta
