// A metrics page as its scraper gets it.
#pragma once

#include <string>
#include <vector>

#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"
#include "service/stats/page/status_collector.h"

namespace eta::testing {

inline std::string PageText(const std::vector<prometheus::MetricFamily>& families) {
  return prometheus::TextSerializer().Serialize(families);
}

// Of a server that still loads its model.
inline std::string PageText(Telemetry& telemetry) {
  return PageText(StatusCollector(telemetry).Collect());
}

}  // namespace eta::testing
