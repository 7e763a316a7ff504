#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/tables/diagnostics/diagnostics.h"
#include "calibration/evaluation/tables/diagnostics/observation.h"
#include "calibration/evaluation/tables/measures/sink_mass.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

// Bounds that the paper gives for the mean over layers.
constexpr double kPaperDense = 0.50;
constexpr double kPaperEta = 0.02;

TableRow Row(const std::string& label, std::span<const std::vector<double>> windows,
             const ModelConfig& config, bool all) {
  const bool gated = config.gate != Gate::kNone;
  const auto paper = [&](double value) { return all ? std::optional(value) : std::nullopt; };
  TableRow row = {.labels = {label}, .n = static_cast<int64_t>(TotalOf(windows, kSinkTerms))};
  row.cells.push_back(RatioCell(windows, kSinkRaw, kSinkTerms, paper(kPaperDense)));
  row.cells.push_back(gated ? RatioCell(windows, kSinkGated, kSinkTerms, paper(kPaperEta))
                            : TableCell());
  row.cells.push_back(RatioCell(windows, kSinkUniform, kSinkTerms));
  row.cells.back().interval = std::nullopt;  // it follows from the positions
  return row;
}

LineChart ByLayer(const Table& table) {
  LineChart chart = {.title = "mass on the first four tokens, by layer",
                     .x_label = "layer",
                     .y_label = "share of the softmax",
                     .from_zero = true};
  for (size_t column = 0; column < table.columns.size(); ++column) {
    FigureLine line = LineOf(table.columns[column].name, table.rows.size() - 1,
                             [&](size_t layer) { return table.rows[layer].cells[column]; });
    if (!line.points.empty()) chart.lines.push_back(std::move(line));
  }
  return chart;
}

}  // namespace

absl::StatusOr<Table> MeasureSinks(TableBench& bench) {
  ASSIGN_OR_RETURN(const DiagnosticSample sample, TakeSample(bench));
  ASSIGN_OR_RETURN(const LayerSums sums, SumByLayer(bench, sample, 0.0f, SinkMassSums));

  Table table = {
      .name = "sinks",
      .title = "Mass on the first four tokens",
      .method = absl::StrCat(
          "The share of full attention's softmax on the first four tokens, before and after the "
          "gate. uniform: 4 / T, what even weights have. A window begins where a text is cut. ",
          SampleText(sample), " ", kWindowIntervals),
      .paper = "its section on sinks: more than 50 % in dense models, less than 2 % under ETA",
      .counted = "rows of a head",
      .keys = {"layer"},
      .columns = {Percent("before_gate", 2), Percent("after_gate", 2), Percent("uniform", 2)}};
  for (size_t layer = 0; layer < sums.size(); ++layer) {
    table.rows.push_back(Row(absl::StrCat(layer), sums[layer], bench.config(), false));
  }
  table.rows.push_back(Row("all", AllLayers(sums), bench.config(), true));
  const size_t column = bench.config().gate != Gate::kNone ? 1 : 0;
  const auto mass = [&](const TableRow& row) { return row.cells[column].value.value_or(0.0); };
  const auto largest =
      std::max_element(table.rows.begin(), table.rows.end() - 1,
                       [&](const TableRow& a, const TableRow& b) { return mass(a) < mass(b); });
  table.findings.push_back(absl::StrFormat(
      "The first four tokens have %.1f %% of full attention's softmax, most in layer %s: %.1f %%.",
      100.0 * mass(table.rows.back()), largest->labels.front(), 100.0 * mass(*largest)));
  table.figures.push_back(ByLayer(table));
  return table;
}

}  // namespace eta
