#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/tables/diagnostics/diagnostics.h"
#include "calibration/evaluation/tables/diagnostics/observation.h"
#include "calibration/evaluation/tables/measures/tail_norm.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

// By m.
std::optional<double> PaperNorm(int32_t size) {
  static const std::map<int32_t, double> norms = {{16, 0.2504},  {32, 0.1750},  {64, 0.1202},
                                                  {128, 0.0799}, {256, 0.0448}, {384, 0.0274}};
  const auto found = norms.find(size);
  return found == norms.end() ? std::nullopt : std::optional(found->second);
}
constexpr double kPaperActive = 0.9973;

LineChart Norms(const Table& table) {
  LineChart chart = {.title = "distance of pruned values' mean, by their number",
                     .x_label = "m",
                     .y_label = "over the spread of values",
                     .log_x = true};
  for (size_t column = 0; column < table.columns.size(); ++column) {
    FigureLine& line = chart.lines.emplace_back();
    line.name = table.columns[column].name;
    line.dots = column > 0;
    for (const TableRow& row : table.rows) {
      const auto point = PointOf(std::stod(row.labels.front()), row.cells[column]);
      if (point) line.points.push_back(*point);
    }
  }
  return chart;
}

}  // namespace

absl::StatusOr<Table> MeasureTail(TableBench& bench) {
  ASSIGN_OR_RETURN(const DiagnosticSample sample, TakeSample(bench));
  ASSIGN_OR_RETURN(const LayerSums sums, SumByLayer(bench, sample, 0.0f, TailNormSums));
  const auto all = AllLayers(sums);

  Table table = {
      .name = "tail",
      .title = "How far the values of pruned keys cancel",
      .method = absl::StrCat(
          "Pruned are the keys of a row and head with S < tau, its own excepted. The numbers are "
          "the distance of their values' mean from the mean of all values of the row, over the "
          "root of the trace of the values' covariance. subset: the root mean square over all "
          "choices of m pruned keys. finite: the same for m of all T keys, 1/sqrt(m) with the "
          "factor for drawing without replacement. whole: all that a row prunes, where that is "
          "about m. weighted: the same, with values weighed as full attention weighs them. ",
          ThresholdText(bench.config()), " ", SampleText(sample), " ", kWindowIntervals),
      .paper = "its table that verifies the proposition on the uniform floor: 1.45B parameters, C4",
      .counted = "rows of a head",
      .keys = {"m"},
      .columns = {{.name = "rate", .digits = 4},
                  {.name = "finite", .digits = 4},
                  {.name = "subset", .digits = 4},
                  {.name = "whole", .digits = 4},
                  {.name = "weighted", .digits = 4}}};
  for (size_t i = 0; i < kTailSizes.size(); ++i) {
    const auto cell = [&](TailNorm norm, std::optional<double> paper = std::nullopt) {
      TableCell ratio = RatioCell(all, TailNormSum(i, norm), TailNormTerms(i, norm), paper);
      ratio.n = static_cast<int64_t>(TotalOf(all, TailNormTerms(i, norm)));
      return ratio;
    };
    const TableCell subset = cell(TailNorm::kSubset, PaperNorm(kTailSizes[i]));
    if (!subset.value) continue;  // no row prunes so many
    table.rows.push_back(
        {.labels = {absl::StrCat(kTailSizes[i])},
         .cells = {PlainCell(1.0 / std::sqrt(kTailSizes[i])), cell(TailNorm::kFinite), subset,
                   cell(TailNorm::kWhole), cell(TailNorm::kWeighted)},
         .n = subset.n});
  }
  double most = 0.0;
  for (const TableRow& row : table.rows) {
    most =
        std::max(most, row.cells[2].value.value_or(0.0) / row.cells[1].value.value_or(1.0) - 1.0);
  }
  if (!table.rows.empty()) {
    table.findings.push_back(absl::StrFormat(
        "Subsets of pruned values are at most %.1f %% further from the mean than as many of all "
        "keys'. That norms fall faster than 1/sqrt(m) comes of drawing "
        "without replacement.",
        100.0 * most));
  }
  const TableCell active = RatioCell(all, kActiveShareSum, kActiveShareTerms);
  if (active.value) {
    table.findings.push_back(absl::StrFormat(
        "Keys that are not pruned have %.4f of full attention's softmax; the paper reports %.4f.",
        *active.value, kPaperActive));
  }
  table.figures.push_back(Norms(table));
  return table;
}

}  // namespace eta
