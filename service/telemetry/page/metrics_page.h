// The Prometheus page: what Telemetry counted, how the server stands, and the process.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "service/telemetry/process_figures.h"
#include "service/telemetry/server_figures.h"
#include "service/telemetry/telemetry.h"

namespace eta {

// Appends the page; without `server`, which is then still loading its model, what is known.
// Names in `server` are labels already.
void WritePage(const TelemetryFigures& figures, const ServerFigures* server,
               const ProcessFigures& process, std::string& page);

// Writes the page whenever it is asked for, one at a time. Thread-safe.
class MetricsPage {
 public:
  // `telemetry` must outlive it.
  explicit MetricsPage(Telemetry& telemetry) : telemetry_(telemetry) {}

  // Where the server's figures come from, null: from nowhere. When this returns the old source is
  // not used any more.
  void SetServer(std::function<ServerFigures()> server);
  std::string Write();

 private:
  Telemetry& telemetry_;
  std::mutex mutex_;
  std::function<ServerFigures()> server_;  // guarded by mutex_
  size_t bytes_ = 0;                       // likewise: of the last page
};

}  // namespace eta
