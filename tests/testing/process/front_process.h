// nginx with the configuration of deploy/front, in front of a server.
#pragma once

#include <memory>
#include <string>

#include "tests/testing/base/temp_folder.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {

class FrontProcess {
 public:
  static bool Installed();

  struct Options {
    std::string server;       // host:port or unix:path
    std::string certificate;  // PEM files
    std::string key;
  };
  explicit FrontProcess(const Options& options);
  // Ends nginx and the connections through it.
  ~FrontProcess();

  // host:port; empty if nginx does not answer.
  const std::string& address() const { return address_; }
  ServerProcess& process() { return *process_; }
  // Its log of calls that it refused itself.
  std::string RefusalLog() const;

 private:
  const TempFolder folder_;
  std::string address_;
  std::unique_ptr<ServerProcess> process_;
};

}  // namespace eta::testing
