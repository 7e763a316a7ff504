// A process of its own that answers this one's questions, a line each. It is forked, so it is to be
// made before this process has any threads.
#pragma once

#include <functional>
#include <string>

namespace eta::bench {

class SideProcess {
 public:
  // `answer` runs in the other process, which ends with this one.
  explicit SideProcess(const std::function<std::string(const std::string&)>& answer);
  ~SideProcess();
  SideProcess(const SideProcess&) = delete;
  SideProcess& operator=(const SideProcess&) = delete;

  void Ask(const std::string& line);
  std::string Answer();  // fails where the other process has ended

 private:
  int pid_;
  int socket_;
};

}  // namespace eta::bench
