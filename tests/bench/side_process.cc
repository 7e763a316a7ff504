#include "tests/bench/side_process.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>

#include "tests/bench/eta_bench/eta_bench.h"

namespace eta::bench {
namespace {

std::optional<std::string> ReadLine(int socket) {
  std::string line;
  for (char c = 0;; line.push_back(c)) {
    if (TEMP_FAILURE_RETRY(read(socket, &c, 1)) != 1) return std::nullopt;
    if (c == '\n') return line;
  }
}

// Writes nothing to an end that is gone; its reader then notices.
void WriteLine(int socket, std::string line) {
  line.push_back('\n');
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t more =
        TEMP_FAILURE_RETRY(send(socket, line.data() + sent, line.size() - sent, MSG_NOSIGNAL));
    if (more < 0) return;
    sent += static_cast<size_t>(more);
  }
}

}  // namespace

SideProcess::SideProcess(const std::function<std::string(const std::string&)>& answer) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) Fail("no socket pair");
  pid_ = fork();
  if (pid_ < 0) Fail("no process");
  close(ends[pid_ == 0 ? 0 : 1]);
  socket_ = ends[pid_ == 0 ? 1 : 0];
  if (pid_ > 0) return;
  while (const auto line = ReadLine(socket_)) WriteLine(socket_, answer(*line));
  _exit(0);
}

SideProcess::~SideProcess() {
  close(socket_);
  waitpid(pid_, nullptr, 0);
}

void SideProcess::Ask(const std::string& line) {
  WriteLine(socket_, line);
}

std::string SideProcess::Answer() {
  const auto line = ReadLine(socket_);
  if (!line) Fail("the other process has ended");
  return *line;
}

}  // namespace eta::bench
