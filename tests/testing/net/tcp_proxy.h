// A bad network inside the test process: a TCP proxy on loopback between clients and a server.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>

namespace eta::testing {

// The faults of every connection, in both directions.
struct LinkFaults {
  std::chrono::milliseconds latency{0};  // of every piece
  std::chrono::milliseconds jitter{0};   // up to this much more
  size_t piece_bytes = 65536;            // bytes sent at a time; small pieces split frames
  int64_t bytes_per_second = 0;          // 0: no limit
  int64_t reset_after = -1;              // reset after this many bytes to the client; -1: never
};

// Thread-safe.
class TcpProxy {
 public:
  // Forwards to a server at 127.0.0.1:PORT, the address as text.
  explicit TcpProxy(const std::string& server);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  // The address for clients, 127.0.0.1:PORT.
  const std::string& address() const { return address_; }

  // Sets the faults of connections made from now on.
  void SetFaults(const LinkFaults& faults);
  // Resets all connections, on both sides.
  void ResetAll();
  // Stops all traffic without a FIN or a reset. New connections are treated the same.
  void BlackHole();
  // Makes new connections work again. Black-holed ones stay dead.
  void Mend();
  // Drops the clients without telling the server.
  void LoseClients();

 private:
  struct Connection;

  void Accept();
  void Pump(const std::shared_ptr<Connection>& connection, int from, int to, bool to_client);

  const int server_port_;
  int listener_ = -1;
  std::string address_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  LinkFaults faults_;
  bool black_hole_ = false;
  bool stop_ = false;
  std::list<std::shared_ptr<Connection>> connections_;
  std::mt19937 random_{1};
  std::thread thread_;
};

}  // namespace eta::testing
