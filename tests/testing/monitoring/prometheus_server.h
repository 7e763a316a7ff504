// A Prometheus process that scrapes one server every second, with the rules of deploy/prometheus.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/testing/base/temp_folder.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {

class PrometheusServer {
 public:
  // Scrapes `target`, a host:port, under the job name eta-server; and under eta-server-v3 with the
  // buckets of histograms spelled as Prometheus 3 does: le="5.0" where the page says le="5".
  explicit PrometheusServer(const std::string& target);

  // True if it answers within a minute.
  bool AwaitReady();
  std::string Errors() { return process_.AwaitExit().errors; }

  // The result of an instant query; an object with "error" if it was refused.
  nlohmann::json Query(const std::string& expression) const;
  // Every loaded rule, as the API describes it.
  nlohmann::json Rules() const;
  // Waits for `count` scrapes of the target from now on. False after a minute.
  bool AwaitScrapes(int count) const;

 private:
  nlohmann::json Get(const std::string& path) const;

  const TempFolder folder_;
  const int port_;
  ServerProcess process_;
};

}  // namespace eta::testing
