#include "service/health/health_watch.h"

#include <algorithm>
#include <utility>

namespace eta {

HealthWatch::HealthWatch(Engine& engine, ServerStateFlags& state, const ServerOptions& options,
                         std::vector<std::string> services, Log& log)
    : engine_(engine),
      state_(state),
      options_(options),
      services_(std::move(services)),
      log_(log) {}

void HealthWatch::Begin(std::vector<grpc::HealthCheckServiceInterface*> health,
                        const Acceptor& acceptor,
                        std::shared_ptr<grpc::ChannelCredentials> credentials) {
  health_ = std::move(health);
  Set(kLiveness, true);
  {
    const MutexLock lock(mutex_);
    ready_ = true;
    SetReady(true);
  }
  log_.Write(LogEvent(LogLevel::kInfo, "ready", "ready: calls are taken"));
  probe_ = std::make_unique<SelfProbe>(
      acceptor.address(), std::move(credentials), options_.self_probe_timeout,
      [&acceptor] { return acceptor.refused_full(); }, log_);
  heartbeats_ = std::vector<Heartbeat>(engine_.Devices().size(),
                                       Heartbeat(options_.stall_timeout, Clock::now()));
  const auto period = std::clamp<std::chrono::milliseconds>(
      options_.stall_timeout / 8, std::chrono::milliseconds(10), std::chrono::milliseconds(100));
  thread_.emplace("health_watch", period, [this] { Check(); });
}

void HealthWatch::NotReady(const std::string& why) {
  {
    const MutexLock lock(mutex_);
    if (!std::exchange(ready_, false)) return;
    SetReady(false);
  }
  log_.Write(LogEvent(LogLevel::kInfo, "not_ready", "not ready any more: " + why));
}

void HealthWatch::Stop() {
  if (thread_) thread_->Stop();
  probe_.reset();
}

void HealthWatch::SetReady(bool ready) {
  state_.SetReady(ready);
  Set("", ready);
  Set(kReadiness, ready);
  for (const std::string& service : services_) Set(service, ready);
}

void HealthWatch::Set(const std::string& name, bool serving) {
  for (auto* const health : health_) health->SetServingStatus(name, serving);
}

void HealthWatch::Check() {
  std::string found = Trouble();
  if (found.empty() != trouble_.empty()) {  // who listens is told of every call of this
    Set(kLiveness, found.empty());
  }
  if (found == trouble_) return;
  log_.Write(found.empty() ? LogEvent(LogLevel::kInfo, "alive", "alive again")
                           : LogEvent(LogLevel::kError, "not_alive", "not alive: " + found));
  trouble_ = std::move(found);
}

std::string HealthWatch::Trouble() {
  const std::vector<EngineSnapshot> devices = engine_.Devices();
  size_t lost = 0;
  bool moves = true;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].device_lost) {
      ++lost;  // out of rotation, and no longer expected to move
    } else {
      moves = heartbeats_[i].Alive(devices[i], Clock::now()) && moves;
    }
  }
  state_.SetStalled(!moves);
  if (lost == devices.size()) {
    NotReady("no device is left");
    return "no device is left";
  }
  if (!moves) return "requests run and no step ends";
  if (probe_->Deaf()) return "new connections are not answered";
  return "";
}

}  // namespace eta
