// A PostgreSQL connection that breaks around a COMMIT.
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
#include "tests/unit/temp_folder.h"

namespace eta {

// Stands between the store and the server, and cuts the connection at the next COMMIT once armed:
// before the server has it, or after the server has answered.
class CommitCutter {
 public:
  enum Cut { kNot, kBefore, kAfter };

  explicit CommitCutter(const std::string& server_folder)
      : server_(server_folder + "/.s.PGSQL.5432") {
    listener_ = socket(AF_UNIX, SOCK_STREAM, 0);
    const sockaddr_un address = Address(folder_.path() + "/.s.PGSQL.5432");
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    thread_ = std::thread([this] { Accept(); });
  }
  ~CommitCutter() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  const std::string& folder() const { return folder_.path(); }
  void Arm(Cut cut) { cut_ = cut; }

 private:
  static sockaddr_un Address(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }
  void Accept() {
    std::vector<std::thread> pumps;
    for (int client; (client = accept(listener_, nullptr, nullptr)) >= 0;) {
      pumps.emplace_back([this, client] { Pump(client); });
    }
    for (std::thread& pump : pumps) pump.join();
  }
  void Pump(int client) {
    const int server = socket(AF_UNIX, SOCK_STREAM, 0);
    const sockaddr_un address = Address(server_);
    if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      while (Forward(client, server)) {
      }
    }
    close(server);
    close(client);
  }
  bool Forward(int client, int server) {
    std::array<pollfd, 2> ends = {pollfd{client, POLLIN, 0}, pollfd{server, POLLIN, 0}};
    if (poll(ends.data(), ends.size(), -1) < 0) return false;
    const bool from_client = ends[0].revents != 0;
    std::array<char, 65536> bytes;
    const ssize_t size = read(from_client ? client : server, bytes.data(), bytes.size());
    if (size <= 0) return false;
    const std::string_view text(bytes.data(), static_cast<size_t>(size));
    const bool commit = from_client && text.find(std::string_view("COMMIT\0", 7)) != text.npos;
    const Cut cut = commit ? cut_.exchange(kNot) : kNot;
    if (cut == kBefore) return false;
    // Either end may have been killed.
    const int to = from_client ? server : client;
    if (send(to, bytes.data(), size_t(size), MSG_NOSIGNAL) != size) return false;
    if (cut == kAfter) {
      (void)!read(server, bytes.data(), bytes.size());
      return false;
    }
    return true;
  }

  TempFolder folder_;
  const std::string server_;
  std::atomic<Cut> cut_ = kNot;
  int listener_ = -1;
  std::thread thread_;
};

}  // namespace eta
