// How etactl reaches a server, and how Ctrl-C ends a call.
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

// `server_default` is the text of the server's default deadline, in seconds.
void AddDeadlineOption(CLI::App* command, std::optional<double>* seconds,
                       const std::string& server_default);

// Without a value the server's default holds.
void SetDeadline(std::optional<double> seconds, grpc::ClientContext* context);

// The command line asks for something that cannot be done.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A channel that shows the flags' credentials with every call. It connects with the first call.
// Throws UsageError if ReadServerFlags returns an error.
std::shared_ptr<grpc::Channel> Connect(const ServerFlags& flags);

// While it lives, the first SIGINT or SIGTERM cancels the call, and the second ends the process.
// REQUIRES: no other thread has been started yet, since the signals must be blocked in all threads.
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
