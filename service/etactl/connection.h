// How etactl reaches a server, and how Ctrl-C ends a call.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "engine/base/mutex.h"
#include "service/etactl/server.h"

namespace CLI {
class App;
}  // namespace CLI

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

// While it lives, the first SIGINT or SIGTERM cancels the call that it follows, and the second ends
// the process; without a call the first one does. REQUIRES: no other thread has been started before
// the first one of these is made, since the signals must be blocked in all threads.
class CancelOnInterrupt {
 public:
  explicit CancelOnInterrupt(grpc::ClientContext* context = nullptr);
  ~CancelOnInterrupt();
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;

  // Follows this call instead; null: none, as must be before the call's context goes. Returns
  // whether the one before was cancelled.
  bool Follow(grpc::ClientContext* context) EXCLUDES(mutex_);
  bool happened() const { return happened_; }

 private:
  void Wait() EXCLUDES(mutex_);

  sigset_t signals_;
  Mutex mutex_;
  grpc::ClientContext* context_ GUARDED_BY(mutex_);
  std::atomic<bool> happened_{false};
  std::atomic<bool> ending_{false};
  std::thread waiter_;
};

}  // namespace eta::ctl
