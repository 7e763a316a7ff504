// Listens, and hands connections to the function that serves them, on a thread of its own.
//
// gRPC 1.51 could do both, but it never accepts again after accept() has failed for want of file
// descriptors (CVE-2023-4785). This acceptor keeps a descriptor in reserve. With none left it takes
// a connection and closes it at once, so that clients need not wait and the listener does not stay
// ready. It accepts again as soon as descriptors come back. This is rare, since connections above a
// limit are closed likewise.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "engine/base/files/descriptor.h"
#include "service/connections/connection_table.h"
#include "service/connections/connection_usage.h"
#include "service/connections/listen_sockets.h"
#include "service/log/log.h"

namespace eta {

class Acceptor {
 public:
  // The default of max_connections is a quarter of the file descriptors that the process may have,
  // and at most this number.
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

  // From now on the kernel accepts connections, which wait for Begin. INVALID_ARGUMENT or
  // UNAVAILABLE, naming the flag.
  absl::Status Listen();
  // The address with the chosen port; empty before Listen.
  const std::string& address() const { return sockets_.address(); }

  // `serve` is called on the acceptor's thread and owns the descriptor that it gets.
  void Begin(std::function<void(int fd)> serve);
  // Closes the listening sockets. `serve` is not called any more. Open connections stay open.
  void Stop();

  // Any thread.
  ConnectionUsage Usage() const;
  int64_t refused_full() const { return refused_full_; }

 private:
  // The result of one Accept. Anything but kMore ends the round.
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
  std::optional<Clock::time_point> said_;  // used by the acceptor's thread

  std::atomic<int64_t> accepted_ = 0;
  std::atomic<int64_t> refused_full_ = 0;
  std::atomic<int64_t> refused_peer_ = 0;
  std::atomic<int64_t> refused_no_files_ = 0;
  std::atomic<int64_t> accept_errors_ = 0;

  std::thread thread_;
};

}  // namespace eta
