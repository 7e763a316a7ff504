// The Prometheus page of a ServerStatus.
#pragma once

#include <vector>

#include "prometheus/metric_family.h"
#include "service/stats/server_status.h"
#include "service/telemetry/telemetry.h"

namespace eta {

// Every family of the catalogue but those of the exposer, in its order. While the model loads only
// what is known has samples. `labels` gives the names in `status` their labels.
std::vector<prometheus::MetricFamily> MetricsPage(const ServerStatus& status, Telemetry& labels);

// Adds the families of VllmNames, copies of what is on the page.
void AddVllmNames(std::vector<prometheus::MetricFamily>& page);

}  // namespace eta
