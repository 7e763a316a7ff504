#include "service/stats/page/status_collector.h"

#include <new>
#include <utility>

#include "kernels/system/failpoint.h"
#include "service/stats/page/metrics_page.h"

namespace eta {
namespace {

ServerStatus LoadingStatus(const Telemetry& telemetry) {
  ServerStatus status;
  status.version = ETA_VERSION;
  status.telemetry = telemetry.Snapshot();
  status.process = ReadProcessUsage();
  status.time = std::chrono::system_clock::now();
  status.now = Clock::now();
  return status;
}

}  // namespace

void StatusCollector::SetServer(std::function<ServerStatus()> server) {
  const std::lock_guard lock(mutex_);
  server_ = std::move(server);
}

std::vector<prometheus::MetricFamily> StatusCollector::Collect() const {
  const std::lock_guard lock(mutex_);
  try {
    (void)ETA_FAILPOINT(kMetricsPage);
    auto page = MetricsPage(server_ ? server_() : LoadingStatus(telemetry_), telemetry_);
    if (vllm_names_) AddVllmNames(page);
    return page;
  } catch (const std::bad_alloc&) {  // the exposer would end the process
    return {};
  }
}

}  // namespace eta
