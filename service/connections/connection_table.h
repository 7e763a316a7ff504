// Knows which connections are open, and whether there is room for one more.
//
// gRPC owns the descriptor of a connection that it was given and tells nobody when it closes it. So
// a connection is remembered as its descriptor with the socket's inode: once the descriptor is
// closed, or is another file's, the connection is gone. To find out takes fstat, under a
// microsecond a connection; it is done when the open ones are counted, and before a connection is
// refused, at most every kRefreshPeriod. Thread-safe.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <string>
#include <unordered_map>

#include "engine/base/clock.h"
#include "engine/base/mutex.h"

namespace eta {

// The identity of a peer for limits: an IPv4 address, the first 64 bits of an IPv6 address, or ""
// for all peers of a Unix socket.
std::string PeerKey(const sockaddr_storage& peer);

class ConnectionTable {
 public:
  enum class Room { kYes, kFull, kPeerFull };

  static constexpr std::chrono::milliseconds kRefreshPeriod{20};
  // Beyond `max`, for peers that have no connection: a probe or an operator gets through while
  // others fill the server.
  static constexpr int kSpare = 16;

  // REQUIRES: max >= 1. max_per_peer 0: no limit per peer. Peers of a Unix socket have no such
  // limit.
  ConnectionTable(int max, int max_per_peer) : max_(max), max_per_peer_(max_per_peer) {}

  int max() const { return max_; }
  // Remembers the connection if there is room.
  Room Add(int fd, const std::string& peer);
  // The number of open connections.
  int Open();

 private:
  struct Connection {
    dev_t device;
    ino_t inode;
    std::string peer;
  };
  using Connections = std::unordered_map<int, Connection>;

  Room RoomFor(const std::string& peer) const REQUIRES(mutex_);
  void ForgetPeer(const std::string& peer) REQUIRES(mutex_);
  // Forgets those that are closed.
  void Refresh() REQUIRES(mutex_);

  const int max_;
  const int max_per_peer_;
  Mutex mutex_;
  Connections connections_ GUARDED_BY(mutex_);  // by descriptor
  std::unordered_map<std::string, int> of_peer_ GUARDED_BY(mutex_);
  Clock::time_point refreshed_ GUARDED_BY(mutex_){};
};

}  // namespace eta
