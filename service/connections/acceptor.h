// Listens, and hands connections to whoever serves them, on a thread of its own.
//
// gRPC 1.51 would do both, but never accepts again once accept() has failed for want of file
// descriptors (CVE-2023-4785). This one keeps a descriptor in reserve: with none left, connections
// are taken and closed at once, so that clients need not wait and the listener does not stay ready;
// it accepts again as soon as descriptors come back. Usually it does not come to that, since
// connections above a limit are closed likewise.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "engine/base/descriptor.h"
#include "service/connections/connection_table.h"
#include "service/connections/connection_usage.h"
#include "service/connections/listen_sockets.h"
#include "service/log/log.h"

namespace eta {

class Acceptor {
 public:
  // Without a limit in the options: a quarter of the file descriptors that the process may have,
  // and at most so many.
  static constexpr int kDefaultMax = 4096;

  struct Options {
    ListenSockets::Options listen;
    int max_connections = 0;
    int max_connections_per_peer = 0;  // 0: no limit of its own
  };

  Acceptor(Options options, Log& log);
  ~Acceptor() { Stop(); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // From now on the kernel takes connections, which wait for Begin. INVALID_ARGUMENT, UNAVAILABLE,
  // naming the flag.
  absl::Status Listen();
  // With the port that was chosen; empty before Listen.
  const std::string& address() const { return sockets_.address(); }

  // `serve` owns the descriptors that it is given; it is called on the acceptor's thread.
  void Begin(std::function<void(int fd)> serve);
  // Closes the sockets; `serve` is not called any more. Those that are open stay so.
  void Stop();

  // Any thread.
  ConnectionUsage Usage() const;
  int64_t refused_full() const { return refused_full_; }

 private:
  // What a round of accepting met; it ends early with anything but kMore.
  enum class Outcome { kMore, kNone, kTired };

  void Run();
  Outcome Accept(int socket);
  Outcome Failed(int socket, int error);
  void Refuse(int fd, std::atomic<int64_t>& count, const char* why);

  const Options options_;
  Log& log_;
  ListenSockets sockets_;
  Descriptor reserve_;
  Descriptor wake_;
  std::unique_ptr<ConnectionTable> table_;
  std::function<void(int)> serve_;
  std::optional<Clock::time_point> said_;  // of the acceptor's thread

  std::atomic<int64_t> accepted_ = 0;
  std::atomic<int64_t> refused_full_ = 0;
  std::atomic<int64_t> refused_peer_ = 0;
  std::atomic<int64_t> refused_no_files_ = 0;
  std::atomic<int64_t> accept_errors_ = 0;

  std::thread thread_;
};

}  // namespace eta
