// The windows that diagnostic tables run a model over, and the rows that they look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/runtime/runner.h"
#include "calibration/evaluation/tables/measures/attention_recorder.h"
#include "calibration/evaluation/tables/measures/recorded_attention.h"
#include "calibration/evaluation/tables/table.h"
#include "calibration/evaluation/tables/table_bench.h"
#include "calibration/solvers/jackknife.h"

namespace eta {

// Windows of the bench's texts, as many of each as of the others, and the rows of each that are
// looked at. 24 windows of 2048 tokens, every 16th row; of a quick run 5 of 1024, every 32nd.
struct DiagnosticSample {
  int32_t context = 0;
  RowSample rows;
  std::vector<std::vector<int32_t>> windows;  // [context + 1] each

  int64_t RowsOfWindow() const { return (context - 1 - rows.first) / rows.stride + 1; }
  int64_t Rows() const { return RowsOfWindow() * static_cast<int64_t>(windows.size()); }
};
absl::StatusOr<DiagnosticSample> TakeSample(const TableBench& bench);
// The numbers of windows, tokens and rows as a sentence, for Table::method.
std::string SampleText(const DiagnosticSample& sample);

// Begins a window of `rows` tokens that attends like this.
absl::Status BeginWindow(SequenceRunner& runner, const TableBench& bench,
                         const EvaluatedAttention& attention, size_t rows);

// Runs the windows as `way` attends, by `feed`, and shows what was recorded of each. A model that
// predicts no thresholds gets relative ones.
absl::Status ObserveWindows(
    TableBench& bench, const DiagnosticSample& sample, const EvaluatedAttention& way,
    const std::function<absl::Status(SequenceRunner&, std::span<const int32_t> rows)>& feed,
    const std::function<absl::Status(const RecordedWindow&)>& visit);
// With full attention at an offset, every row as a row of a prompt.
absl::Status ObserveWindows(TableBench& bench, const DiagnosticSample& sample, float offset,
                            const std::function<absl::Status(const RecordedWindow&)>& visit);
// Which thresholds those are: for Table::method.
std::string ThresholdText(const ModelConfig& config);

// Calls `work` with 0 .. count - 1, from as many threads as there are CPUs to use. The first error.
absl::Status ForEachOf(size_t count, const std::function<absl::Status(size_t)>& work);

// Sums of a measure, [L][windows][sums].
using LayerSums = std::vector<std::vector<std::vector<double>>>;
// `measure` is called from several threads at a time.
absl::StatusOr<LayerSums> SumByLayer(TableBench& bench, const DiagnosticSample& sample,
                                     float offset,
                                     const std::function<absl::StatusOr<std::vector<double>>(
                                         const RecordedWindow&, const RecordedLayer&)>& measure);
// The same over all layers, [windows][sums].
std::vector<std::vector<double>> AllLayers(const LayerSums& sums);

// An estimate as a cell.
TableCell EstimateCell(const Estimate& estimate, std::optional<double> paper = std::nullopt);
// A ratio of sums as a cell; empty where it is 0 / 0.
TableCell RatioCell(std::span<const std::vector<double>> windows, size_t numerator,
                    size_t denominator, std::optional<double> paper = std::nullopt);
// Sum `index` over windows.
double TotalOf(std::span<const std::vector<double>> windows, size_t index);

// A point of a line with the cell's interval; nothing where the cell has no value.
std::optional<FigurePoint> PointOf(double x, const TableCell& cell);
// The points of cells 0 .. count - 1, at these x.
FigureLine LineOf(const std::string& name, size_t count,
                  const std::function<TableCell(size_t)>& cell);

// How intervals are made: for Table::method.
inline constexpr char kWindowIntervals[] =
    "Intervals: 95 %, by leaving out one window at a time (jackknife).";

}  // namespace eta
