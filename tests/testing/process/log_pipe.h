// A pipe that a log writes and that a test may read or leave unread.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <future>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace eta::testing {

class LogPipe {
 public:
  LogPipe() { EXPECT_EQ(pipe2(fds_, O_CLOEXEC), 0); }
  ~LogPipe() {
    CloseWriter();
    close(fds_[0]);
  }
  int writer() const { return fds_[1]; }
  void CloseWriter() {
    if (fds_[1] >= 0) close(fds_[1]);
    fds_[1] = -1;
  }
  // Reads lines until the writer is closed.
  std::vector<std::string> ReadAll() {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(fds_[0], buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    std::vector<std::string> lines;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      lines.push_back(text.substr(begin, end - begin));
      if (end == std::string::npos) break;
      begin = end + 1;
    }
    return lines;
  }
  // Ends the log, and reads what it still writes.
  template <typename Writer>
  std::vector<std::string> ReadRest(std::optional<Writer>& log) {
    auto lines = std::async(std::launch::async, [this] { return ReadAll(); });
    log.reset();
    CloseWriter();
    return lines.get();
  }

 private:
  int fds_[2] = {-1, -1};
};

}  // namespace eta::testing
