#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/tables/diagnostics/diagnostics.h"
#include "calibration/evaluation/tables/diagnostics/observation.h"
#include "calibration/evaluation/tables/measures/tail_shape.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

struct Metric {
  TailMetric metric;
  const char* name;
  std::array<double, kTailForms.size()> paper;
};
constexpr Metric kMetrics[] = {
    {TailMetric::kMass, "mass below the threshold", {0.424, 0.438, 1.5e-25}},
    {TailMetric::kEntropy, "entropy over log n", {0.790, 0.916, 0.081}},
    {TailMetric::kMaxToMean, "largest over mean weight", {15.6, 2.03, 249.7}}};
constexpr const char* kForms[] = {"before_gate", "after_gate", "additive"};

LineChart MassByLayer(const LayerSums& sums) {
  LineChart chart = {.title = "mass below the threshold, by layer",
                     .x_label = "layer",
                     .y_label = "share of the softmax",
                     .from_zero = true};
  for (const TailForm form : {TailForm::kRaw, TailForm::kMultiplicative}) {
    const char* name = form == TailForm::kRaw ? "before the gate" : "after the gate";
    chart.lines.push_back(LineOf(name, sums.size(), [&](size_t layer) {
      return RatioCell(sums[layer], TailSum(form, TailMetric::kMass), TailTerms(TailMetric::kMass));
    }));
  }
  return chart;
}

}  // namespace

absl::StatusOr<Table> MeasureMasking(TableBench& bench) {
  if (bench.config().gate == Gate::kNone) {
    return absl::FailedPreconditionError("model: has no gate, whose work masking would show");
  }
  ASSIGN_OR_RETURN(const DiagnosticSample sample, TakeSample(bench));
  ASSIGN_OR_RETURN(const LayerSums sums, SumByLayer(bench, sample, 0.0f, TailShapeSums));
  const auto all = AllLayers(sums);

  Table table = {
      .name = "masking",
      .title = "Keys below the threshold, before and after the gate",
      .method = absl::StrCat(
          "Full attention. The keys below the threshold are those of a row and head with S < tau, "
          "its own excepted. Additive: the paper's strict mask, S + 100 (m - 1), on the same "
          "scores. ",
          SampleText(sample), " ", kWindowIntervals),
      .paper =
          "its table of masking formulations: 126M parameters, 24 sequences of 1024 tokens of "
          "FineWeb; additive of a model that was trained so",
      .counted = "rows of a head",
      .keys = {"metric"}};
  for (const char* form : kForms) table.columns.push_back({.name = form});
  for (const Metric& metric : kMetrics) {
    TableRow& row = table.rows.emplace_back();
    row.labels = {metric.name};
    row.n = static_cast<int64_t>(TotalOf(all, TailTerms(metric.metric)));
    for (const TailForm form : kTailForms) {
      row.cells.push_back(RatioCell(all, TailSum(form, metric.metric), TailTerms(metric.metric),
                                    metric.paper[static_cast<size_t>(form)]));
    }
  }
  const auto value = [&](size_t metric, TailForm form) {
    return table.rows[metric].cells[static_cast<size_t>(form)].value.value_or(0.0);
  };
  if (table.rows[1].cells.front().value) {
    table.findings.push_back(absl::StrFormat(
        "The gate takes the keys below the threshold from %.1f %% of the softmax to %.1f %%, their "
        "entropy from %.3f of log n to %.3f.",
        100.0 * value(0, TailForm::kRaw), 100.0 * value(0, TailForm::kMultiplicative),
        value(1, TailForm::kRaw), value(1, TailForm::kMultiplicative)));
  }
  table.figures.push_back(MassByLayer(sums));
  return table;
}

}  // namespace eta
