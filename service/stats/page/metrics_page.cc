#include "service/stats/page/metrics_page.h"

#include "service/stats/page/metric_groups.h"

namespace eta {

std::vector<prometheus::MetricFamily> MetricsPage(const ServerStatus& status, Telemetry& labels) {
  MetricFamilies page(status.telemetry.model);
  AddCalls(status.telemetry, page);
  AddQueue(status, page);
  AddKvCache(status, page);
  AddLatencies(status.telemetry, page);
  AddTokens(status.telemetry, page);
  AddAttention(status.telemetry, page);
  AddTenants(status, labels, page);
  AddSteps(status.telemetry, page);
  AddEngine(status, page);
  AddProfiles(status, labels, page);
  AddCalibrations(status, page);
  AddConnections(status, page);
  AddFiles(status, page);
  AddMemory(status, page);
  AddProcess(status.process, page);
  return page.Release();
}

}  // namespace eta
