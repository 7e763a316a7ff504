#include "service/etactl/connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>
#include <pthread.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <utility>
#include <vector>

#include "service/etactl/error.h"

namespace eta::ctl {

namespace {

// Adds metadata to every call, over TLS and plaintext alike. gRPC's own call credentials refuse
// plaintext, also if it does not leave this host.
class Authorization final : public grpc::experimental::Interceptor {
 public:
  explicit Authorization(const std::string& value) : value_(value) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", value_);
    }
    methods->Proceed();
  }

 private:
  const std::string& value_;
};

class AuthorizationFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit AuthorizationFactory(std::string value) : value_(std::move(value)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new Authorization(value_);
  }

 private:
  const std::string value_;
};

}  // namespace

void AddDeadlineOption(CLI::App* command, std::optional<double>* seconds,
                       const std::string& server_default) {
  command
      ->add_option("--deadline", *seconds,
                   "Seconds until the call is given up; default: the server's, " + server_default)
      ->check(CLI::Range(0.001, 1e6));
}

void SetDeadline(std::optional<double> seconds, grpc::ClientContext* context) {
  if (!seconds.has_value()) return;
  const std::chrono::duration<double> wanted(*seconds);
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::duration_cast<std::chrono::milliseconds>(wanted));
}

std::shared_ptr<grpc::Channel> Connect(const ServerFlags& flags) {
  // The log-probabilities of a long prompt exceed gRPC's default of 4 MiB.
  constexpr int kMaxMessageBytes = 256 << 20;
  constexpr int kPingMs = 30'000;  // a server takes one every 20 s
  const absl::StatusOr<ServerAccess> access = ReadServerFlags(flags);
  if (!access.ok()) throw UsageError(std::string(access.status().message()));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetUserAgentPrefix("etactl");
  // A connection that died while this host slept would not be missed: nothing is written on it.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  const auto credentials = access->tls
                               ? grpc::SslCredentials({.pem_root_certs = access->roots,
                                                       .pem_private_key = access->key,
                                                       .pem_cert_chain = access->certificate})
                               : grpc::InsecureChannelCredentials();
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!access->authorization.empty()) {
    interceptors.push_back(std::make_unique<AuthorizationFactory>(access->authorization));
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      access->address, credentials, arguments, std::move(interceptors));
}

CancelOnInterrupt::CancelOnInterrupt(grpc::ClientContext* context) : context_(context) {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  waiter_ = std::thread([this] { Wait(); });
}

CancelOnInterrupt::~CancelOnInterrupt() {
  ending_ = true;
  pthread_kill(waiter_.native_handle(), SIGINT);
  waiter_.join();
}

bool CancelOnInterrupt::Follow(grpc::ClientContext* context) {
  const MutexLock lock(mutex_);
  context_ = context;
  return happened_.exchange(false);
}

void CancelOnInterrupt::Wait() {
  while (true) {
    int signal = 0;
    if (sigwait(&signals_, &signal) != 0 || ending_) return;
    const MutexLock lock(mutex_);
    if (context_ == nullptr || happened_.exchange(true)) _exit(kInterrupted);
    context_->TryCancel();
  }
}

}  // namespace eta::ctl
