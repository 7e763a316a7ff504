// What the exposer asks for the page, once for each scrape.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "service/stats/server_status.h"
#include "service/telemetry/telemetry.h"

namespace eta {

// One page at a time. Thread-safe.
class StatusCollector final : public prometheus::Collectable {
 public:
  // `telemetry` must outlive it. Until there is a server the status is that of one that loads.
  // `vllm_names`: AddVllmNames is called for each page.
  explicit StatusCollector(Telemetry& telemetry, bool vllm_names = false)
      : telemetry_(telemetry), vllm_names_(vllm_names) {}

  // Where the server's status comes from, null: from nowhere. When this returns the old source is
  // not used any more.
  void SetServer(std::function<ServerStatus()> server);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  Telemetry& telemetry_;
  const bool vllm_names_;
  mutable std::mutex mutex_;
  std::function<ServerStatus()> server_;  // guarded by mutex_
};

}  // namespace eta
