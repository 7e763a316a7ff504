// How etactl reaches a server, and how Ctrl-C reaches a call.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "service/etactl/server.h"

namespace eta::ctl {

// `server_default` names, in seconds, what the server gives a call without a deadline.
void AddDeadlineOption(CLI::App* command, std::optional<double>* seconds,
                       const std::string& server_default);

// Absent: the server's.
void SetDeadline(std::optional<double> seconds, grpc::ClientContext* context);

// What the command line asks for cannot be done.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A channel that shows the flags' credentials with every call; connects with the first call. Throws
// UsageError where ReadServerFlags has an error.
std::shared_ptr<grpc::Channel> Connect(const ServerFlags& flags);

// While it lives, the first SIGINT or SIGTERM cancels the call; the second ends the process. To be
// made before any other thread is: the signals must be blocked in all of them.
class CancelOnInterrupt {
 public:
  explicit CancelOnInterrupt(grpc::ClientContext* context);
  ~CancelOnInterrupt();
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;

  bool happened() const { return happened_; }

 private:
  void Wait(grpc::ClientContext* context);

  sigset_t signals_;
  std::atomic<bool> happened_{false};
  std::atomic<bool> ending_{false};
  std::thread waiter_;
};

}  // namespace eta::ctl
