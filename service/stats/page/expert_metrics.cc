// How rows spread over the experts of each layer. A series for each expert would be thousands: of a
// layer there are sums, and three experts that tell how even its choices are.
#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "service/stats/page/metric_groups.h"

namespace eta {
namespace {

int64_t SumOf(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

// Each of the three over the mean of the layer's experts.
void AddLoads(const ExpertTotals& layer, MetricFamilies& page) {
  const int64_t sum = SumOf(layer.rows);
  if (sum == 0) return;
  std::vector<int64_t> rows = layer.rows;
  std::ranges::sort(rows);
  const auto add = [&](std::string_view expert, int64_t of_it) {
    page.Add(
        {{"layer", std::to_string(layer.layer)}, {"expert", expert}},
        static_cast<double>(of_it) * static_cast<double>(rows.size()) / static_cast<double>(sum));
  };
  add("busiest", rows.back());
  add("median", rows[rows.size() / 2]);
  add("idlest", rows.front());
}

}  // namespace

void AddExperts(const TelemetrySnapshot& telemetry, MetricFamilies& page) {
  const std::vector<ExpertTotals>& layers = telemetry.server.experts;
  page.Begin("eta_expert_rows_total");
  for (const ExpertTotals& layer : layers) {
    page.Add({{"layer", std::to_string(layer.layer)}}, SumOf(layer.rows));
  }
  page.Begin("eta_experts_read_total");
  for (const ExpertTotals& layer : layers) {
    page.Add({{"layer", std::to_string(layer.layer)}}, layer.read);
  }
  page.Begin("eta_expert_load_ratio");
  for (const ExpertTotals& layer : layers) AddLoads(layer, page);
}

}  // namespace eta
