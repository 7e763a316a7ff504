// A PostgreSQL server whose connections break, or fall silent: they stay open and nothing comes
// back.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"

namespace eta {

// A relay between the store and the server. A silent connection reads what the store sends and
// drops it.
class PostgresRelay {
 public:
  // A fault at a connection's COMMIT, once: cut before the server has the COMMIT; cut after the
  // server has answered it; or silent once the server has it.
  enum AtCommit { kForward, kCutBefore, kCutAfter, kFallSilent };

  explicit PostgresRelay(const std::string& server_folder)
      : server_(server_folder + "/.s.PGSQL.5432") {
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un address = Address(folder_.path() + "/.s.PGSQL.5432");
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    thread_ = std::thread([this] { Accept(); });
  }
  ~PostgresRelay() {
    HangUp();
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  // The URL of one of the server's databases, through the relay.
  std::string Through(std::string url) const {
    return url.replace(url.find("host=") + 5, std::string::npos, folder_.path());
  }

  // Chooses what happens at the next COMMIT of any connection.
  void Arm(AtCommit at_commit) { at_commit_ = at_commit; }
  // Silences all connections, and those made from now on.
  void Silence() { ++turn_; }
  // Makes new connections work again. Silent ones stay silent.
  void Mend() { ++turn_; }
  // The number of pieces from the store that were dropped in silence.
  int dropped() const { return dropped_; }
  // Closes all connections, now and later, which ends all waiting for an answer.
  void HangUp() { over_ = true; }

 private:
  struct Link {
    int client = -1;
    int server = -1;
    int turn = 0;
    bool silent = false;
  };

  static sockaddr_un Address(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }
  void Accept() {
    std::vector<std::thread> pumps;
    for (int client; (client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      pumps.emplace_back([this, client, turn = turn_.load()] { Pump(client, turn); });
    }
    for (std::thread& pump : pumps) pump.join();
  }
  void Pump(int client, int turn) {
    Link link{.client = client,
              .server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
              .turn = turn,
              .silent = turn % 2 != 0};
    const sockaddr_un address = Address(server_);
    if (connect(link.server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      while (!over_ && Forward(link)) {
      }
    }
    close(link.server);
    close(link.client);
  }
  // Forwards what has arrived. False if an end was closed, or is to be closed. The server's end of
  // a silent connection does not matter.
  bool Forward(Link& link) {
    constexpr int kTickMs = 10;
    link.silent = link.silent || turn_ != link.turn;
    std::array<pollfd, 2> ends = {pollfd{link.client, POLLIN, 0},
                                  pollfd{link.silent ? -1 : link.server, POLLIN, 0}};
    if (poll(ends.data(), ends.size(), kTickMs) <= 0) return true;
    const bool from_client = ends[0].revents != 0;
    std::array<char, 65536> bytes;
    const ssize_t size = read(from_client ? link.client : link.server, bytes.data(), bytes.size());
    if (size <= 0) return false;
    if (link.silent) {
      ++dropped_;
      return true;
    }
    const std::string_view text(bytes.data(), static_cast<size_t>(size));
    const bool commit = from_client && text.find(std::string_view("COMMIT\0", 7)) != text.npos;
    const AtCommit now = commit ? at_commit_.exchange(kForward) : kForward;
    if (now == kCutBefore) return false;
    // Either end may have been killed.
    const int to = from_client ? link.server : link.client;
    if (send(to, bytes.data(), text.size(), MSG_NOSIGNAL) != size) return false;
    if (now == kCutAfter) {
      (void)!read(link.server, bytes.data(), bytes.size());
      return false;
    }
    link.silent = now == kFallSilent;
    return true;
  }

  TempFolder folder_;
  const std::string server_;
  std::atomic<int> turn_ = 0;  // odd: silent
  std::atomic<AtCommit> at_commit_ = kForward;
  std::atomic<int> dropped_ = 0;
  std::atomic<bool> over_ = false;
  int listener_ = -1;
  std::thread thread_;
};

}  // namespace eta
