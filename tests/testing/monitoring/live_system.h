// The built server on this repository's model, a Prometheus that scrapes it, and clients that count
// their own traffic: full and dynamic attention, profiles, refusals, deadlines, cancelled streams.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "eta/v1/profiles.grpc.pb.h"
#include "eta/v1/service.grpc.pb.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/monitoring/client_counts.h"
#include "tests/testing/monitoring/prometheus_server.h"
#include "tests/testing/process/metric_samples.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {

class LiveSystem {
 public:
  // A metrics page in the middle of traffic: two requests ran and two waited.
  struct Busy {
    MetricSamples page;
    int rounds = 0;
  };

  // Check ok() before anything else.
  LiveSystem();

  bool ok() const { return prometheus_ != nullptr; }
  std::string Errors() { return server_.AwaitExit().errors; }

  // Makes profiles of three tenants: one calibrates, the others import.
  void MakeProfiles();
  // Makes one call or more of every kind, and waits until the server has counted them all.
  void PlayRound();

  std::string ReadPage() const;
  MetricSamples Scrape() const { return MetricSamples(ReadPage()); }
  v1::Stats AskStats(bool layers = false, const std::string& tenant = "operator");
  const PrometheusServer& prometheus() const { return *prometheus_; }

  ClientCounts counts;
  Busy busy;
  v1::Profile legal;  // of tenant alice
  v1::Profile books;  // of tenant bob, with the thresholds of `legal`

 private:
  void Answer(const std::string& tenant, const std::string& mode, const std::string& profile,
              int32_t sample);
  void Refusals();
  void Cancellations();
  void PassDeadline();
  // Without a density the profile is as dense as the model's own thresholds.
  bool Calibrate(const std::string& name, std::optional<double> union_density,
                 v1::Profile* profile = nullptr);
  v1::Profile Import(const std::string& tenant, const std::string& name, const std::string& json);
  bool AwaitPage(const std::function<bool(const MetricSamples&)>& condition) const;

  const TempFolder folder_;
  ServerProcess server_;
  int metrics_port_ = 0;
  std::unique_ptr<v1::EtaService::Stub> stub_;
  std::unique_ptr<v1::ProfileService::Stub> profiles_;
  std::unique_ptr<v1::EtaService::Stub> stats_;
  std::unique_ptr<PrometheusServer> prometheus_;
  int rounds_ = 0;
};

}  // namespace eta::testing
