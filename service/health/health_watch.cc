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
    const std::lock_guard lock(mutex_);
    ready_ = true;
    SetReady(true);
  }
  log_.Write(LogEvent(LogLevel::kInfo, "ready", "ready: calls are taken"));
  probe_ = std::make_unique<SelfProbe>(
      acceptor.address(), std::move(credentials), options_.self_probe_timeout,
      [&acceptor] { return acceptor.refused_full(); }, log_);
  thread_ = std::thread([this] { Run(); });
}

void HealthWatch::NotReady(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(ready_, false)) return;
    SetReady(false);
  }
  log_.Write(LogEvent(LogLevel::kInfo, "not_ready", "not ready any more: " + why));
}

void HealthWatch::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  probe_.reset();
}

void HealthWatch::SetReady(bool ready) {
  Set("", ready);
  Set(kReadiness, ready);
  for (const std::string& service : services_) Set(service, ready);
}

void HealthWatch::Set(const std::string& name, bool serving) {
  for (auto* const health : health_) health->SetServingStatus(name, serving);
}

void HealthWatch::Run() {
  const auto period = std::clamp<std::chrono::milliseconds>(
      options_.stall_timeout / 8, std::chrono::milliseconds(10), std::chrono::milliseconds(100));
  std::vector<Heartbeat> heartbeats(engine_.Devices().size(),
                                    Heartbeat(options_.stall_timeout, Clock::now()));
  std::string trouble;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period, [this] { return stop_; })) {
    lock.unlock();
    std::string found = Look(heartbeats);
    if (found.empty() != trouble.empty()) {  // who listens is told of every call of this
      Set(kLiveness, found.empty());
    }
    if (found != trouble) {
      log_.Write(found.empty() ? LogEvent(LogLevel::kInfo, "alive", "alive again")
                               : LogEvent(LogLevel::kError, "not_alive", "not alive: " + found));
      trouble = std::move(found);
    }
    lock.lock();
  }
}

std::string HealthWatch::Look(std::vector<Heartbeat>& heartbeats) {
  const std::vector<EngineSnapshot> devices = engine_.Devices();
  size_t lost = 0;
  bool moves = true;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].device_lost) {
      ++lost;  // out of rotation, and no longer expected to move
    } else {
      moves = heartbeats[i].Alive(devices[i], Clock::now()) && moves;
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
