#include "service/stats/page/metrics_page.h"

#include <algorithm>
#include <string>
#include <utility>

#include "service/stats/page/metric_groups.h"
#include "service/telemetry/metric_catalogue.h"

namespace eta {

std::vector<prometheus::MetricFamily> MetricsPage(const ServerStatus& status, Telemetry& labels) {
  MetricFamilies page(status.telemetry.model);
  AddCalls(status.telemetry, page);
  AddQueue(status, page);
  AddKvCache(status, page);
  AddLatencies(status.telemetry, page);
  AddTokens(status.telemetry, page);
  AddAttention(status.telemetry, page);
  AddFormats(status.telemetry, page);
  AddTenants(status, labels, page);
  AddSteps(status.telemetry, page);
  AddExperts(status.telemetry, page);
  AddEngine(status, page);
  AddProfiles(status, labels, page);
  AddCalibrations(status, page);
  AddConnections(status, page);
  AddFiles(status, page);
  AddTraces(status, page);
  AddMemory(status, page);
  AddProcess(status.process, page);
  return page.Release();
}

void AddVllmNames(std::vector<prometheus::MetricFamily>& page) {
  for (const MetricAlias& alias : VllmNames()) {
    const auto found = std::find_if(page.begin(), page.end(),
                                    [&](const auto& family) { return family.name == alias.of; });
    if (found == page.end()) continue;
    prometheus::MetricFamily named = *found;
    named.name = std::string(alias.name);
    for (prometheus::ClientMetric& metric : named.metric) {
      for (prometheus::ClientMetric::Label& label : metric.label) {
        if (label.name == "model") label.name = "model_name";
      }
    }
    page.push_back(std::move(named));
  }
}

}  // namespace eta
