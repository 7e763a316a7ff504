#include "calibration/evaluation/tables/table.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "calibration/figures/svg.h"
#include "calibration/solvers/interval.h"

namespace eta {

TableCell ShareCell(int64_t hits, int64_t n) {
  if (n <= 0) return {};
  const ShareInterval interval = WilsonInterval(hits, n);
  return {.value = static_cast<double>(hits) / static_cast<double>(n),
          .interval = std::pair(interval.low, interval.high),
          .n = n};
}

TableCell MeanCell(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  TableCell cell = {
      .value = mean, .interval = std::nullopt, .n = static_cast<int64_t>(values.size())};
  if (values.size() < static_cast<size_t>(kMinIntervalBlocks)) return cell;
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double half = StudentQuantile(n - 1.0) * std::sqrt(squares / (n - 1.0) / n);
  cell.interval = std::pair(mean - half, mean + half);
  return cell;
}

TableCell ExpCell(const MeanInterval& loss, int64_t n) {
  TableCell cell = {.value = std::exp(loss.mean), .interval = std::nullopt, .n = n};
  if (loss.half_width) {
    cell.interval =
        std::pair(std::exp(loss.mean - *loss.half_width), std::exp(loss.mean + *loss.half_width));
  }
  return cell;
}

std::string TableSvg(const Table& table) {
  return table.figures.empty() ? std::string() : SvgOf(table.figures, table.title);
}

}  // namespace eta
