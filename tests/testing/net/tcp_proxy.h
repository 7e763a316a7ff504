// A bad network in one process: a TCP proxy on loopback between clients and a server.
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

// What every connection suffers, both ways.
struct LinkFaults {
  std::chrono::milliseconds latency{0};  // of every piece
  std::chrono::milliseconds jitter{0};   // up to so much more
  size_t piece_bytes = 65536;            // what is sent at a time: small ones break up frames
  int64_t bytes_per_second = 0;          // 0: as fast as it goes
  int64_t reset_after = -1;              // bytes that a client got, then the connection is reset
};

// Thread-safe.
class TcpProxy {
 public:
  // In front of a server at 127.0.0.1:PORT, the address as text.
  explicit TcpProxy(const std::string& server);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  // 127.0.0.1:PORT for clients.
  const std::string& address() const { return address_; }

  // Of connections made from now on.
  void SetFaults(const LinkFaults& faults);
  // Resets all connections, on both sides.
  void ResetAll();
  // Nothing gets through any more, nothing is told: no FIN, no reset. New connections are the same.
  void BlackHole();
  // Connections made from now on work again; those that were black-holed do not.
  void Mend();
  // Clients are gone, and the server does not hear of it.
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
