// The built eta-server in a process of its own, listening on a free port of this host.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace eta::testing {

class ServerProcess {
 public:
  struct Exit {
    int code = -1;       // -1: a signal ended it
    std::string errors;  // its standard error
  };

  // Starts `binary` with these flags.
  ServerProcess(const std::string& binary, const std::vector<std::string>& flags);
  // Kills it if it still runs.
  ~ServerProcess();

  // Returns host:port once it prints that it listens; empty if it ends before or takes over two
  // minutes.
  std::string AwaitAddress() { return AwaitLine("listening on "); }
  // Returns what follows `prefix` in the next line of its standard output that begins so; empty
  // likewise.
  std::string AwaitLine(std::string_view prefix);
  void Signal(int signal);
  pid_t pid() const { return pid_; }
  bool Running();
  // The most memory that it has had at once, in KB; only while it runs. ForgetPeakMemory resets it.
  int64_t PeakMemory() const;
  void ForgetPeakMemory() const;
  Exit AwaitExit();

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string errors_path_;
  std::optional<int> wait_status_;
};

}  // namespace eta::testing
