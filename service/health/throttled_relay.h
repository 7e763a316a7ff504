// Between clients and a server that must not read as fast as anybody can send: what a client says
// gets on at a rate that all of them share, in turns, and only while it reads what it is told.
//
// gRPC 1.51 queues what a client makes it do (resets, pings, settings) without a bound. Where no
// proxy stands before it, this makes the bound.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/files/descriptor.h"
#include "engine/base/mutex.h"

namespace eta {

class ThrottledRelay {
 public:
  struct Rate {
    int64_t bytes_per_second;
    int64_t burst_bytes;  // what may pass at once after a quiet time; at least kTurnBytes
  };

  // Bytes that one client may send before it is the next one's turn.
  static constexpr size_t kTurnBytes = 1024;

  explicit ThrottledRelay(Rate rate) : rate_(rate), left_(rate.burst_bytes) {}
  ~ThrottledRelay() { Stop(); }
  ThrottledRelay(const ThrottledRelay&) = delete;
  ThrottledRelay& operator=(const ThrottledRelay&) = delete;

  // UNAVAILABLE without a file descriptor.
  absl::Status Start();
  // Any thread. The server's end of a connection; none if no descriptor is left, and then the
  // client is closed. Either end's close becomes the other's once it has been told what was said
  // before.
  Descriptor Add(Descriptor client);
  // Closes what it holds of all connections.
  void Stop();

 private:
  template <size_t N>
  struct Buffer {
    std::array<char, N> bytes;
    size_t begin = 0, end = 0;
    bool empty() const { return begin == end; }
  };
  struct Connection {
    Descriptor client, server;
    Buffer<kTurnBytes> said;     // by the client, and not passed on yet
    Buffer<16 * 1024> answered;  // by the server, likewise
  };

  void Run();
  void Refill();
  // False once the connection has ended.
  bool Pass(Connection& connection, short client, short server);

  const Rate rate_;
  Descriptor wake_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Connection>> new_ GUARDED_BY(mutex_);
  bool stopped_ GUARDED_BY(mutex_) = false;

  // Of the thread:
  std::vector<std::unique_ptr<Connection>> connections_;  // whose turn it is first
  int64_t left_;                                          // bytes that clients may say now
  Clock::time_point refilled_ = Clock::now();

  std::thread thread_;
};

}  // namespace eta
