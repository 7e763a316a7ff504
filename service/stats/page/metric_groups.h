// The parts of the page, one for each group of the catalogue.
#pragma once

#include <chrono>

#include "service/stats/page/metric_families.h"
#include "service/stats/server_status.h"
#include "service/telemetry/telemetry.h"

namespace eta {

inline double Seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

// request_metrics.cc
void AddCalls(const TelemetrySnapshot& telemetry, MetricFamilies& page);
void AddLatencies(const TelemetrySnapshot& telemetry, MetricFamilies& page);
void AddTokens(const TelemetrySnapshot& telemetry, MetricFamilies& page);
void AddAttention(const TelemetrySnapshot& telemetry, MetricFamilies& page);
void AddFormats(const TelemetrySnapshot& telemetry, MetricFamilies& page);
void AddExperts(const TelemetrySnapshot& telemetry, MetricFamilies& page);
void AddSteps(const TelemetrySnapshot& telemetry, MetricFamilies& page);

// engine_metrics.cc
void AddQueue(const ServerStatus& status, MetricFamilies& page);
void AddKvCache(const ServerStatus& status, MetricFamilies& page);
void AddEngine(const ServerStatus& status, MetricFamilies& page);

// tenant_metrics.cc. Summed where several tenants share a label; bounds only where one has it to
// itself.
void AddTenants(const ServerStatus& status, Telemetry& labels, MetricFamilies& page);

// profile_metrics.cc
void AddProfiles(const ServerStatus& status, Telemetry& labels, MetricFamilies& page);
void AddCalibrations(const ServerStatus& status, MetricFamilies& page);

// process_metrics.cc
void AddConnections(const ServerStatus& status, MetricFamilies& page);
void AddFiles(const ServerStatus& status, MetricFamilies& page);
void AddTraces(const ServerStatus& status, MetricFamilies& page);
void AddMemory(const ServerStatus& status, MetricFamilies& page);
void AddProcess(const ProcessUsage& process, MetricFamilies& page);

}  // namespace eta
