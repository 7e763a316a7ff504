#include "service/server.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_builder.h"
#include "kernels/failpoint.h"
#include "service/calibrate/calibrate_reactor.h"
#include "service/health/without_reflection.h"
#include "service/identity/tls_credentials.h"
#include "service/stats/take_figures.h"

namespace eta {
namespace {

using Connections = grpc::experimental::ExternalConnectionAcceptor;

constexpr std::chrono::milliseconds kFlushGrace{1000};  // for what waits to be sent after the drain
constexpr std::chrono::milliseconds kNoGrace{0};
constexpr std::chrono::milliseconds kHurryPeriod{20};      // between two looks for a second signal
constexpr int kMaxStreams = 100;                           // of a connection, at a time
constexpr int kMaxMetadataBytes = 8 << 10;                 // of a call
constexpr std::chrono::milliseconds kMaxPingWait{10'000};  // unanswered for so long: peer is gone
constexpr std::chrono::milliseconds kMinClientPing{20'000};  // who pings faster is sent away
constexpr std::chrono::milliseconds kMaxIdle{900'000};       // of a connection without calls
constexpr int kStoreThreads = 4;
constexpr size_t kMaxWaitingStoreCalls = 128;
constexpr size_t kOperatorsStoreCalls = 8;  // of them, places that only operators may take

int Milliseconds(std::chrono::milliseconds duration) {
  return static_cast<int>(std::clamp<int64_t>(duration.count(), 0, INT32_MAX));
}

// The transport has one limit for all methods; each call holds its message against its own.
int LongestMessage(const ServerOptions& options, bool has_store) {
  if (!has_store) return options.max_message_bytes;
  return static_cast<int>(std::max({static_cast<size_t>(options.max_message_bytes),
                                    kMaxCalibrateBytes, ProfileService::kMaxImportBytes}));
}

std::chrono::milliseconds PingWait(const ServerOptions& options) {
  return std::min(options.keepalive_interval, kMaxPingWait);
}

std::chrono::milliseconds AgeGrace(const ServerOptions& options, const Limits& limits) {
  if (options.max_connection_age_grace.count() > 0) return options.max_connection_age_grace;
  return std::max(limits.default_deadline, options.default_calibrate_deadline) +
         limits.max_congestion;
}

void Configure(const ServerOptions& options, const Limits& limits, bool has_store,
               grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(LongestMessage(options, has_store));
  // A compressed message is inflated before its size is known.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  const std::pair<const char*, int> arguments[] = {
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams},
      {GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes},
      {GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_interval)},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(PingWait(options))},
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, Milliseconds(kMinClientPing)},
      {GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2},
      {GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(kMaxIdle)},
      {GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(options.max_connection_age)},
      {GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(AgeGrace(options, limits))},
      {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000},
  };
  for (const auto& [name, value] : arguments) builder.AddChannelArgument(name, value);
}

std::unique_ptr<ProfileCache> MakeCache(const ServerOptions& options, ProfileStore* store) {
  if (store == nullptr) return nullptr;
  return std::make_unique<ProfileCache>(
      *store, ProfileCacheOptions{.staleness = options.profile_staleness});
}

Acceptor::Options ForAcceptor(const ServerOptions& options) {
  return {.listen = {.address = options.listen,
                     .file_mode = static_cast<mode_t>(options.socket_mode),
                     .user_timeout = PingWait(options)},
          .max_connections = options.max_connections,
          .max_connections_per_peer = options.max_connections_per_peer};
}

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
      acceptor_(ForAcceptor(options_), log_),
      calls_(context.call_observers),
      limits_(context.limits != nullptr ? *context.limits : no_limits_),
      ledger_(limits_),
      memory_(options.memory),
      profiles_(MakeCache(options, context.profiles)),
      store_calls_({.threads = context.profiles != nullptr ? kStoreThreads : 0,
                    .waiting = kMaxWaitingStoreCalls,
                    .operators = kOperatorsStoreCalls}),
      calibrations_(options.max_calibrations),
      calibration_threads_({.threads = context.profiles != nullptr ? options.max_calibrations : 0,
                            .waiting = 2 * static_cast<size_t>(options.max_calibrations)}),
      context_{.options = options_,
               .engine = engine_,
               .store = context.profiles,
               .calibrate = context.calibrate,
               .telemetry = context.telemetry,
               .calls = calls_,
               .state = state_,
               .live_calls = live_calls_,
               .memory = memory_,
               .writer = writer_,
               .profiles = profiles_.get(),
               .store_calls = store_calls_,
               .calibrations = calibrations_,
               .calibration_threads = calibration_threads_,
               .acceptor = acceptor_,
               .identity = *security_.identity,
               .limits = limits_,
               .ledger = ledger_,
               .answers_cut_off = answers_cut_off_,
               .streams = streams_},
      service_(context_, watchers_),
      profile_service_(context_),
      admin_service_(context_, log_),
      health_(engine_, state_, options_, NamesInHealth(options_), log_) {}

absl::Status Server::Check(const ServerOptions& options, const Limits& limits) {
  if (absl::Status status = CheckOptions(options, limits); !status.ok()) return status;
  return OpenSecurity(options, Log::Nowhere()).status();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const ServerContext& context) {
  if (absl::Status status = Check(options, context.engine.limits()); !status.ok()) return status;
  if (ETA_FAILPOINT(kServerThreads)) {
    throw std::system_error(EAGAIN, std::generic_category(), "no thread");
  }
  auto security = OpenSecurity(options, LogOf(context));
  if (!security.ok()) return security.status();
  std::unique_ptr<Server> server(new Server(options, context, *std::move(security)));
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

absl::Status Server::Listen() {
  grpc::EnableDefaultHealthCheckService(true);
  if (options_.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  Configure(options_, engine_.limits(), context_.store != nullptr, builder);
  if (!options_.reflection) builder.SetOption(std::make_unique<WithoutReflection>());
  builder.RegisterService(&service_);
  builder.RegisterService(&profile_service_);
  builder.RegisterService(&admin_service_);
  const std::shared_ptr<Connections> connections =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials_);
  if (absl::Status status = acceptor_.Listen(); !status.ok()) return status;
  memory_.Begin([this] { streams_.EndCostliest(); });
  server_ = builder.BuildAndStart();
  if (!server_) return absl::UnavailableError("the gRPC server does not start");
  acceptor_.Begin([connections](int fd) {
    Connections::NewConnectionParameters connection;
    connection.fd = fd;
    connections->HandleNewConnection(&connection);
  });
  log_.Write(LogEvent(LogLevel::kInfo, "listening", "listening on " + address())
                 .Add("address", address())
                 .Add("max_connections", acceptor_.Figures().max));
  std::vector<grpc::HealthCheckServiceInterface*> health = {server_->GetHealthCheckService()};
  if (!options_.health_listen.empty()) {
    health_listener_ = std::make_unique<HealthListener>(options_.health_listen, log_);
    if (absl::Status status = health_listener_->Start(); !status.ok()) return status;
    health.push_back(health_listener_->health());
    log_.Write(
        LogEvent(LogLevel::kInfo, "health_listening", "health on " + health_listener_->address())
            .Add("address", health_listener_->address()));
  }
  health_.Begin(std::move(health), acceptor_, ProbeCredentials(security_.tls.get(), security_.own));
  return absl::OkStatus();
}

Server::~Server() {
  if (!server_) return;
  health_.Stop();
  state_.SetClosed();
  engine_.Drain(Clock::now());
  watchers_.Close();
  acceptor_.Stop();  // first: gRPC loses what it is handed once it shuts down
  server_->Shutdown(std::chrono::system_clock::now());
  if (profiles_ != nullptr) profiles_->Close();
  live_calls_.WaitUntilIdle(Clock::time_point::max());
}

ServerFigures Server::Figures() const {
  ServerFigures figures = TakeFigures(context_);
  figures.watchers = watchers_.watching();
  figures.max_watchers = StatsWatchers::kMax;
  const auto add = [&figures](const char* name, const WatchedFiles* file) {
    if (file != nullptr) figures.files.push_back({.file = name, .reloads = file->Figures()});
  };
  if (security_.tls != nullptr) add("tls", &security_.tls->file());
  add("identity", security_.identity->file());
  add("tenants", limits_.file());
  return figures;
}

void Server::Drain() {
  const auto begin = Clock::now();
  (void)ETA_FAILPOINT(kDrain);
  state_.SetDraining();
  health_.NotReady("the server ends");
  {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, options_.drain_delay, [this] { return hurry_; });
  }
  state_.SetClosed();
  log_.Write(LogEvent(LogLevel::kInfo, "closed", "new calls are refused from now on"));
  const auto deadline = Clock::now() + options_.drain_timeout;
  if (profiles_ != nullptr) profiles_->Close();  // the engine would refuse what waits for one
  engine_.Drain(deadline);
  calibrations_.Drain(deadline);  // those that compute beside the engine, or store
  watchers_.Close();              // last: it may be watched how the rest ends
  AwaitCalls(deadline);
  health_.Stop();
  // Refusals that are on their way get there. What arrives from here on sees CANCELLED, until the
  // client has heard that the connection ends: gRPC 1.51 leaves no choice.
  bool hurry;
  {
    const std::lock_guard lock(mutex_);
    hurry = hurry_;
  }
  acceptor_.Stop();  // first: gRPC loses what it is handed once it shuts down
  server_->Shutdown(std::chrono::system_clock::now() + (hurry ? kNoGrace : kFlushGrace));
  const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
  log_.Write(LogEvent(LogLevel::kInfo, "drain_end", "drained").Add("duration_ms", taken.count()));
}

// What has ended is still being sent to clients that read slowly.
void Server::AwaitCalls(Clock::time_point deadline) {
  while (true) {
    const auto now = Clock::now();
    {
      const std::lock_guard lock(mutex_);
      if (hurry_ || deadline <= now) break;
    }
    if (live_calls_.WaitUntilIdle(std::min(deadline, now + kHurryPeriod))) return;
  }
  live_calls_.WaitUntilIdle(Clock::now() + kFlushGrace);
}

void Server::HurryDrain() {
  {
    const std::lock_guard lock(mutex_);
    hurry_ = true;
  }
  wake_.notify_all();
  state_.SetClosed();
  engine_.Drain(Clock::now());
  calibrations_.Drain(Clock::now());
}

}  // namespace eta
