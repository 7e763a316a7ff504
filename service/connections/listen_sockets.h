// The listening sockets of one address of a server.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/files/descriptor.h"

namespace eta {

class ListenSockets {
 public:
  struct Options {
    // host:port, [IPv6]:port or unix:path. Port 0 means any free one. 0.0.0.0 and [::] both mean
    // all addresses of both families. A name that stands for several addresses means all of them.
    std::string address;
    mode_t file_mode = 0600;  // of a Unix socket
    // An accepted connection counts as gone if its sent bytes are not acknowledged for this long.
    std::chrono::milliseconds user_timeout{0};
  };

  // Replaces a socket file at which nobody listens. INVALID_ARGUMENT for an address of no known
  // form, UNAVAILABLE if it cannot be listened on. Both name --listen.
  static absl::StatusOr<ListenSockets> Open(const Options& options);

  ListenSockets() = default;
  ListenSockets(ListenSockets&&) = default;
  ListenSockets& operator=(ListenSockets&&) = default;
  ~ListenSockets() { Close(); }

  const std::vector<Descriptor>& sockets() const { return sockets_; }
  // The address as it was asked for, with the chosen port.
  const std::string& address() const { return address_; }

  // Also removes the file of a Unix socket, if the file is still the one that Open made.
  void Close();

 private:
  absl::Status OpenUnix(const Options& options, const std::string& path);
  absl::Status OpenTcp(const Options& options);

  std::vector<Descriptor> sockets_;
  std::string address_;
  std::string path_;  // of the Unix socket's file; empty: none
  ino_t inode_ = 0;   // of that file
};

}  // namespace eta
