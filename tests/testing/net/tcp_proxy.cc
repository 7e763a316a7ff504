#include "tests/testing/net/tcp_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/net/free_port.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick{5};

int PortOf(const std::string& address) {
  return std::stoi("0" + address.substr(address.rfind(':') + 1));
}

void CloseWithReset(int fd) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close(fd);
}

void SendNow(int fd) {
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

}  // namespace

struct TcpProxy::Connection {
  int client = -1;
  int server = -1;
  LinkFaults faults;
  std::atomic<bool> dead = false;  // true: nothing gets through
  std::atomic<bool> over = false;  // true: the pumps must end
  std::atomic<bool> reset = false;
  std::vector<std::thread> pumps;
};

TcpProxy::TcpProxy(const std::string& server) : server_port_(PortOf(server)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(listener_, 128), 0);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  thread_ = std::thread([this] { Accept(); });
}

TcpProxy::~TcpProxy() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  shutdown(listener_, SHUT_RDWR);
  thread_.join();
  close(listener_);
  ResetAll();
}

void TcpProxy::SetFaults(const LinkFaults& faults) {
  const std::lock_guard lock(mutex_);
  faults_ = faults;
}

void TcpProxy::ResetAll() {
  std::list<std::shared_ptr<Connection>> connections;
  {
    const std::lock_guard lock(mutex_);
    connections.swap(connections_);
  }
  for (const auto& connection : connections) connection->over = true;
  for (const auto& connection : connections) {
    for (std::thread& pump : connection->pumps) pump.join();
    if (connection->client >= 0) CloseWithReset(connection->client);
    CloseWithReset(connection->server);
  }
}

void TcpProxy::BlackHole() {
  const std::lock_guard lock(mutex_);
  black_hole_ = true;
  for (const auto& connection : connections_) connection->dead = true;
}

void TcpProxy::Mend() {
  const std::lock_guard lock(mutex_);
  black_hole_ = false;
}

void TcpProxy::LoseClients() {
  const std::lock_guard lock(mutex_);
  for (const auto& connection : connections_) {
    connection->over = true;
    for (std::thread& pump : connection->pumps) pump.join();
    connection->pumps.clear();
    if (connection->client >= 0) CloseWithReset(connection->client);
    connection->client = -1;
  }
}

void TcpProxy::Accept() {
  while (true) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const std::lock_guard lock(mutex_);
    if (stop_ || client < 0) {
      if (client >= 0) close(client);
      return;
    }
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = Loopback(server_port_);
    if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      CloseWithReset(client);
      close(server);
      continue;
    }
    SendNow(client);
    SendNow(server);
    const auto connection = std::make_shared<Connection>();
    connection->client = client;
    connection->server = server;
    connection->faults = faults_;
    connection->dead = black_hole_;
    connection->pumps.emplace_back(
        [this, connection, client, server] { Pump(connection, client, server, false); });
    connection->pumps.emplace_back(
        [this, connection, client, server] { Pump(connection, server, client, true); });
    connections_.push_back(connection);
  }
}

// Copies until one side ends, and then ends the other side, as a working network would.
void TcpProxy::Pump(const std::shared_ptr<Connection>& connection, int from, int to,
                    bool to_client) {
  const LinkFaults& faults = connection->faults;
  std::vector<char> piece(faults.piece_bytes);
  int64_t left = to_client && faults.reset_after >= 0 ? faults.reset_after : INT64_MAX;
  while (!connection->over) {
    pollfd readable{.fd = from, .events = POLLIN, .revents = 0};
    if (connection->dead) {
      std::this_thread::sleep_for(kTick);
      continue;
    }
    if (poll(&readable, 1, static_cast<int>(kTick.count())) <= 0) continue;
    const ssize_t count = recv(from, piece.data(), piece.size(), 0);
    if (count <= 0) break;
    milliseconds wait = faults.latency;
    if (faults.jitter.count() > 0) {
      const std::lock_guard lock(mutex_);
      wait += milliseconds(static_cast<int64_t>(random_()) % (faults.jitter.count() + 1));
    }
    if (faults.bytes_per_second > 0) wait += milliseconds(count * 1000 / faults.bytes_per_second);
    if (wait.count() > 0) std::this_thread::sleep_for(wait);
    if (connection->dead) continue;
    const auto size = static_cast<size_t>(std::min<int64_t>(count, left));
    for (size_t sent = 0; sent < size && !connection->over;) {
      pollfd writable{.fd = to, .events = POLLOUT, .revents = 0};
      if (poll(&writable, 1, static_cast<int>(kTick.count())) <= 0) continue;
      const ssize_t n = send(to, piece.data() + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) {
        connection->over = true;
      } else {
        sent += static_cast<size_t>(n);
      }
    }
    left -= static_cast<int64_t>(size);
    if (left > 0) continue;
    // A socket with a linger time of 0 sends a reset when it is disconnected.
    sockaddr nowhere{};
    nowhere.sa_family = AF_UNSPEC;
    for (const int fd : {from, to}) connect(fd, &nowhere, sizeof(nowhere));
    break;
  }
  if (!connection->over) shutdown(to, SHUT_WR);
}

}  // namespace eta::testing
