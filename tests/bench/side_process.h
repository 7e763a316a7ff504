// A process that answers this one's questions, one line each. It is forked, so make it before this
// process has any threads.
#pragma once

#include <functional>
#include <string>

namespace eta::bench {

class SideProcess {
 public:
  // `answer` runs in the other process, which ends when this one does.
  explicit SideProcess(const std::function<std::string(const std::string&)>& answer);
  ~SideProcess();
  SideProcess(const SideProcess&) = delete;
  SideProcess& operator=(const SideProcess&) = delete;

  void Ask(const std::string& line);
  std::string Answer();  // fails if the other process has ended

 private:
  int pid_;
  int socket_;
};

}  // namespace eta::bench
