#include "service/health/self_probe.h"

#include <memory>
#include <utility>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace eta {
namespace {

constexpr int kFailures = 3;
constexpr int kPeriods = 12;   // of `patience`
constexpr int kDeadlines = 6;  // likewise

// gRPC 1.51 leaks the connection of a channel that goes while it connects, at both ends of this
// process: such channels wait here, on the probe's thread, until they have or have not.
thread_local std::vector<std::shared_ptr<grpc::Channel>> connecting;

}  // namespace

SelfProbe::SelfProbe(std::string address, std::shared_ptr<grpc::ChannelCredentials> credentials,
                     std::chrono::milliseconds patience, std::function<int64_t()> refused, Log& log)
    : address_(std::move(address)),
      credentials_(std::move(credentials)),
      patience_(patience),
      refused_(std::move(refused)),
      log_(log),
      thread_("self_probe", patience_ / kPeriods, [this] { Probe(); }) {}

SelfProbe::~SelfProbe() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    if (asking_ != nullptr) asking_->TryCancel();
  }
  thread_.Stop();
}

bool SelfProbe::Deaf() const {
  const MutexLock lock(mutex_);
  return failures_ >= kFailures && Clock::now() - answered_ >= patience_;
}

void SelfProbe::Probe() {
  const auto begin = Clock::now();
  const int64_t refused = refused_();
  const std::string error = Ask();
  const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
  const bool answered = error.empty() || refused_() != refused;
  log_.Write(LogEvent(LogLevel::kDebug, "self_probe")
                 .Add("answered", answered)
                 .Add("duration_ms", taken.count()));
  {
    const MutexLock lock(mutex_);
    if (stop_) return;
    failures_ = answered ? 0 : failures_ + 1;
    if (answered) answered_ = Clock::now();
  }
  if (std::exchange(sound_, answered) == answered) return;
  log_.Write(answered ? LogEvent(LogLevel::kInfo, "self_probe_answered",
                                 "new connections are answered again")
                      : LogEvent(LogLevel::kWarning, "self_probe_failed",
                                 "a new connection to this server was not answered: " + error));
}

std::string SelfProbe::Ask() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // else a connection would be shared
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const std::chrono::milliseconds patience = patience_ / kDeadlines;
  const auto channel = grpc::CreateCustomChannel(address_, credentials_, arguments);
  const auto stub = grpc::health::v1::Health::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + patience);
  {
    const MutexLock lock(mutex_);
    if (stop_) return "";
    asking_ = &context;
  }
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, {}, &response);
  connecting.push_back(channel);
  std::erase_if(connecting, [](const std::shared_ptr<grpc::Channel>& other) {
    return other->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_CONNECTING;
  });
  const MutexLock lock(mutex_);
  asking_ = nullptr;
  return status.ok() ? "" : status.error_message();
}

}  // namespace eta
