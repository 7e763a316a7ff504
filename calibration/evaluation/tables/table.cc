#include "calibration/evaluation/tables/table.h"

#include <cmath>

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
