#include "service/server/server.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_builder.h"
#include "kernels/system/failpoint.h"
#include "service/connections/handed_connections.h"
#include "service/health/without_reflection.h"
#include "service/identity/identity.h"
#include "service/identity/tls_credentials.h"
#include "service/profiles/default_profile.h"
#include "service/server/transport.h"
#include "service/stats/status_reader.h"

namespace eta {
namespace {

constexpr std::chrono::milliseconds kFlushGrace{1000};  // for what waits to be sent after the drain
constexpr std::chrono::milliseconds kNoGrace{0};
constexpr std::chrono::milliseconds kHurryPeriod{20};  // in which a second signal is noticed

Log& LogOf(const ServerContext& context) {
  return context.log != nullptr ? *context.log : Log::Nowhere();
}

// Which services there are is nobody's business who has not shown a credential; the health service
// asks for none, since probes have none.
std::vector<std::string> NamesInHealth(const ServerOptions& options) {
  if (!options.identity.empty() || !options.tls_client_ca.empty()) return {};
  return {v1::EtaService::service_full_name(), v1::ProfileService::service_full_name(),
          v1::AdminService::service_full_name()};
}

}  // namespace

Server::Server(const ServerOptions& options, const ServerContext& context, Security security)
    : options_(options),
      engine_(context.engine),
      log_(LogOf(context)),
      security_(std::move(security)),
      credentials_(MakeCredentials(security_.tls.get())),
      acceptor_(AcceptorOptions(options_), log_),
      resources_(options_, context, acceptor_, *security_.identity),
      context_(resources_.context),
      service_(context_, watchers_),
      profile_service_(context_),
      admin_service_(context_, log_),
      health_(engine_, resources_.state, options_, NamesInHealth(options_), log_) {}

absl::Status Server::Check(const ServerOptions& options, const Limits& limits) {
  RETURN_IF_ERROR(CheckOptions(options, limits));
  return OpenSecurity(options, Log::Nowhere()).status();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const ServerContext& context) {
  RETURN_IF_ERROR(Check(options, context.engine.limits()));
  if (ETA_FAILPOINT(kServerThreads)) {
    throw std::system_error(EAGAIN, std::generic_category(), "no thread");
  }
  ASSIGN_OR_RETURN(auto security, OpenSecurity(options, LogOf(context)));
  std::unique_ptr<Server> server(new Server(options, context, std::move(security)));
  RETURN_IF_ERROR(server->Listen());
  return server;
}

absl::Status Server::Listen() {
  RETURN_IF_ERROR(acceptor_.Listen());
  resources_.memory.Begin([this] { resources_.streams.EndCostliest(); });
  RETURN_IF_ERROR(StartGrpc());
  log_.Write(LogEvent(LogLevel::kInfo, "listening", "listening on " + address())
                 .Add("address", address())
                 .Add("max_connections", acceptor_.Usage().max));
  AskDefaultProfile();
  RETURN_IF_ERROR(StartGateways());
  return StartHealth();
}

absl::Status Server::StartGateways() {
  for (const std::string& text : options_.vllm_listen) {
    ASSIGN_OR_RETURN(const auto listen, ParseVllmListen(text));
    VllmListener& listener =
        *vllm_listeners_.emplace_back(std::make_unique<VllmListener>(listen, context_, log_));
    RETURN_IF_ERROR(listener.Start(credentials_));
    log_.Write(LogEvent(LogLevel::kInfo, "gateway_listening",
                        "gateways reach the model on " + listener.address())
                   .Add("address", listener.address())
                   .Add("model", listen.name.empty() ? engine_.info().model_name : listen.name)
                   .Add("attention", Name(listen.attention)));
  }
  return absl::OkStatus();
}

void Server::AskDefaultProfile() {
  const std::string& text = options_.default_profile;
  if (text.empty()) return;
  if (resources_.profiles == nullptr) {
    log_.Write(LogEvent(LogLevel::kWarning, "default_profile",
                        "--default_profile: has no effect without --profile_store")
                   .Add("profile", text));
    return;
  }
  const auto ask = [this, text] {
    const auto reference = ParseProfileReference("default_profile", text);
    if (!reference.ok()) return;  // checked before
    std::set<Tenant> tenants = security_.identity->KnownTenants();
    for (const std::string& name : resources_.limits.Named()) {
      if (const auto tenant = Tenant::Parse(name); tenant.ok()) tenants.insert(*tenant);
    }
    LogDefaultProfile(*reference, text, tenants, *resources_.profiles, log_);
  };
  // Nothing waits yet, so there is room.
  (void)resources_.store_calls.Post({.name = kDefaultTenant, .is_operator = true}, ask);
}

absl::Status Server::StartGrpc() {
  grpc::EnableDefaultHealthCheckService(true);
  if (options_.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  ConfigureTransport(options_, engine_.limits(), context_.store != nullptr, builder);
  if (!options_.reflection) builder.SetOption(std::make_unique<WithoutReflection>());
  builder.RegisterService(&service_);
  builder.RegisterService(&profile_service_);
  builder.RegisterService(&admin_service_);
  auto hand = HandedConnections(builder, credentials_);
  server_ = builder.BuildAndStart();
  if (!server_) return absl::UnavailableError("the gRPC server does not start");
  acceptor_.Begin(std::move(hand));
  return absl::OkStatus();
}

absl::Status Server::StartHealth() {
  std::vector<grpc::HealthCheckServiceInterface*> health = {server_->GetHealthCheckService()};
  if (!options_.health_listen.empty()) {
    health_listener_ = std::make_unique<HealthListener>(options_.health_listen, log_);
    RETURN_IF_ERROR(health_listener_->Start());
    health.push_back(health_listener_->health());
    log_.Write(
        LogEvent(LogLevel::kInfo, "health_listening", "health on " + health_listener_->address())
            .Add("address", health_listener_->address()));
  }
  for (const auto& listener : vllm_listeners_) health.push_back(listener->health());
  health_.Begin(std::move(health), acceptor_, ProbeCredentials(security_.tls.get(), security_.own));
  return absl::OkStatus();
}

Server::~Server() {
  if (!server_) return;
  health_.Stop();
  resources_.state.SetClosed();
  engine_.Drain(Clock::now());
  resources_.calibrations.Drain(Clock::now());  // nobody may wait for one, and it is a live call
  EndWatches();
  CloseTransport(kNoGrace);
  if (resources_.profiles != nullptr) resources_.profiles->Close();
  resources_.live_calls.WaitUntilIdle(Clock::time_point::max());
}

ServerStatus Server::Status() const {
  ServerStatus status = ReadServerStatus({.process = true}, context_);
  status.watchers = watchers_.watching();
  status.max_watchers = StatsWatchers::kMax;
  const auto add = [&status](const char* name, const WatchedFiles* file) {
    if (file != nullptr) status.files.push_back({.file = name, .reloads = file->Status()});
  };
  if (security_.tls != nullptr) add("tls", &security_.tls->file());
  add("identity", security_.identity->file());
  add("tenants", context_.limits.file());
  return status;
}

void Server::Drain() {
  const auto begin = Clock::now();
  (void)ETA_FAILPOINT(kDrain);
  resources_.state.SetDraining();
  health_.NotReady("the server ends");
  AwaitDrainDelay();
  resources_.state.SetClosed();
  log_.Write(LogEvent(LogLevel::kInfo, "closed", "new calls are refused from now on"));
  const auto deadline = Clock::now() + options_.drain_timeout;
  EndWork(deadline);
  AwaitCalls(deadline);
  health_.Stop();
  // Refusals that are on their way get there. What arrives from here on sees CANCELLED, until the
  // client has heard that the connection ends: gRPC 1.51 leaves no choice.
  CloseTransport(Hurried() ? kNoGrace : kFlushGrace);
  const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
  log_.Write(LogEvent(LogLevel::kInfo, "drain_end", "drained").Add("duration_ms", taken.count()));
}

void Server::AwaitDrainDelay() {
  MutexLock lock(mutex_);
  wake_.WaitFor(lock, options_.drain_delay, [this]() REQUIRES(mutex_) { return hurry_; });
}

void Server::EndWork(Clock::time_point deadline) {
  // The engine would refuse what waits for a profile.
  if (resources_.profiles != nullptr) resources_.profiles->Close();
  engine_.Drain(deadline);
  resources_.calibrations.Drain(deadline);  // those that compute beside the engine, or store
  EndWatches();                             // last: it may be watched how the rest ends
}

void Server::EndWatches() {
  watchers_.Close();
  if (context_.kv_events != nullptr) context_.kv_events->Close(ServerDraining());
}

// What has ended is still being sent to clients that read slowly.
void Server::AwaitCalls(Clock::time_point deadline) {
  for (auto now = Clock::now(); !Hurried() && now < deadline; now = Clock::now()) {
    if (resources_.live_calls.WaitUntilIdle(std::min(deadline, now + kHurryPeriod))) return;
  }
  resources_.live_calls.WaitUntilIdle(Clock::now() + kFlushGrace);
}

void Server::CloseTransport(std::chrono::milliseconds grace) {
  for (const auto& listener : vllm_listeners_) listener->Stop(grace);
  acceptor_.Stop();  // first: gRPC loses what it is handed once it shuts down
  server_->Shutdown(std::chrono::system_clock::now() + grace);
}

void Server::HurryDrain() {
  {
    const MutexLock lock(mutex_);
    hurry_ = true;
  }
  wake_.NotifyAll();
  resources_.state.SetClosed();
  engine_.Drain(Clock::now());
  resources_.calibrations.Drain(Clock::now());
}

bool Server::Hurried() const {
  const MutexLock lock(mutex_);
  return hurry_;
}

}  // namespace eta
