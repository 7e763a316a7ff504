#include "service/etactl_connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>

#include "service/etactl_error.h"

namespace eta::ctl {

void AddServerOption(CLI::App* command, std::string* server) {
  *server = "localhost:8471";
  command
      ->add_option("--server", *server,
                   "HOST:PORT or unix:PATH; default $ETA_SERVER, else localhost:8471")
      ->envname("ETA_SERVER");
}

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

std::shared_ptr<grpc::Channel> Connect(const std::string& server) {
  // The log-probabilities of a long prompt pass gRPC's default of 4 MiB.
  constexpr int kMaxMessageBytes = 256 << 20;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetUserAgentPrefix("etactl");
  return grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments);
}

CancelOnInterrupt::CancelOnInterrupt(grpc::ClientContext* context) {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  waiter_ = std::thread([this, context] { Wait(context); });
}

CancelOnInterrupt::~CancelOnInterrupt() {
  ending_ = true;
  pthread_kill(waiter_.native_handle(), SIGINT);
  waiter_.join();
}

void CancelOnInterrupt::Wait(grpc::ClientContext* context) {
  while (true) {
    int signal = 0;
    if (sigwait(&signals_, &signal) != 0 || ending_) return;
    if (happened_.exchange(true)) _exit(kInterrupted);
    context->TryCancel();
  }
}

}  // namespace eta::ctl
