// A Prometheus of its own that scrapes one server every second, with the rules of
// deploy/prometheus.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/testing/base/temp_folder.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {

class PrometheusServer {
 public:
  // `target` is the host:port that it scrapes, under the job's name eta-server.
  explicit PrometheusServer(const std::string& target);

  // Whether it answers within a minute.
  bool AwaitReady();
  std::string Errors() { return process_.AwaitExit().errors; }

  // The result of an instant query; an object with "error" if it was refused.
  nlohmann::json Query(const std::string& expression) const;
  // Every loaded rule, as the API describes it.
  nlohmann::json Rules() const;
  // Returns when the target was scraped `count` times after now; false after a minute.
  bool AwaitScrapes(int count) const;

 private:
  nlohmann::json Get(const std::string& path) const;

  const TempFolder folder_;
  const int port_;
  ServerProcess process_;
};

}  // namespace eta::testing
