#include "calibration/evaluation/tables/diagnostics/observation.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/attention/sequence_settings.h"
#include "engine/base/status_macros.h"
#include "kernels/system/usable_cpus.h"

namespace eta {
namespace {

constexpr int32_t kFirstRow = 64;  // rows before it have few keys to choose from

}  // namespace

absl::StatusOr<DiagnosticSample> TakeSample(const TableBench& bench) {
  DiagnosticSample sample;
  sample.context = bench.Context(2048, 1024);
  sample.rows = {.first = std::min(kFirstRow, sample.context / 4),
                 .stride = bench.quick() ? 32 : 16};
  const std::vector<BenchText> texts = bench.Texts();
  const auto count = static_cast<int32_t>(texts.size());
  const int32_t wanted = bench.Samples(24, 5);
  for (int32_t i = 0; i < std::min(count, wanted); ++i) {
    const int32_t of_text = wanted / count + (i < wanted % count ? 1 : 0);
    ASSIGN_OR_RETURN(std::vector<std::vector<int32_t>> windows,
                     bench.Windows(texts[static_cast<size_t>(i)], sample.context, of_text));
    for (auto& window : windows) sample.windows.push_back(std::move(window));
  }
  return sample;
}

std::string SampleText(const DiagnosticSample& sample) {
  return absl::StrCat(sample.windows.size(), " windows of ", sample.context, " tokens; one row in ",
                      sample.rows.stride, " from row ", sample.rows.first, " on.");
}

absl::Status BeginWindow(SequenceRunner& runner, const TableBench& bench,
                         const EvaluatedAttention& attention, size_t rows) {
  return runner.Begin(SequenceSettingsOf(attention, bench.tokenizer().special_ids(), bench.config(),
                                         static_cast<int64_t>(rows)));
}

absl::Status ObserveWindows(
    TableBench& bench, const DiagnosticSample& sample, const EvaluatedAttention& way,
    const std::function<absl::Status(SequenceRunner&, std::span<const int32_t> rows)>& feed,
    const std::function<absl::Status(const RecordedWindow&)>& visit) {
  AttentionRecorder recorder(bench.runtime().shared_backend(), bench.config(), sample.rows);
  ASSIGN_OR_RETURN(const auto runner, bench.MakeRunner(way.geometry, sample.context, &recorder));
  const auto total = static_cast<int64_t>(sample.windows.size());
  for (int64_t done = 0; done < total; ++done) {
    bench.Progress(done, total);
    const std::vector<int32_t>& window = sample.windows[static_cast<size_t>(done)];
    const auto rows = std::span(window).first(static_cast<size_t>(sample.context));
    recorder.Begin();
    RETURN_IF_ERROR(BeginWindow(*runner, bench, way, rows.size()));
    RETURN_IF_ERROR(feed(*runner, rows));
    if (!bench.config().has_predictor) {
      SetRelativeThresholds(recorder.window(), AttentionOptions().relative_c);
    }
    RETURN_IF_ERROR(visit(recorder.window()));
  }
  bench.Progress(total, total);
  return absl::OkStatus();
}

absl::Status ObserveWindows(TableBench& bench, const DiagnosticSample& sample, float offset,
                            const std::function<absl::Status(const RecordedWindow&)>& visit) {
  ASSIGN_OR_RETURN(EvaluatedAttention full, bench.Attention("full", bench.Geometry()));
  full.options.offset = offset;
  const auto as_prompt = [](SequenceRunner& runner, std::span<const int32_t> rows) {
    return runner.RunPrompt(rows);
  };
  return ObserveWindows(bench, sample, full, as_prompt, visit);
}

std::string ThresholdText(const ModelConfig& config) {
  if (config.has_predictor) return "Thresholds are the model's own.";
  return absl::StrFormat(
      "The model predicts no thresholds: a row's is its log-sum-exp %+.1f, which keys of at least "
      "exp(%.1f) of the softmax reach.",
      AttentionOptions().relative_c, AttentionOptions().relative_c);
}

absl::Status ForEachOf(size_t count, const std::function<absl::Status(size_t)>& work) {
  std::vector<absl::Status> statuses(count);
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) statuses[i] = work(i);
  };
  const auto threads = std::min(static_cast<size_t>(ReadUsableCpus().threads()), count);
  {
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < threads; ++i) helpers.emplace_back(run);
    run();
  }
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::StatusOr<LayerSums> SumByLayer(TableBench& bench, const DiagnosticSample& sample,
                                     float offset,
                                     const std::function<absl::StatusOr<std::vector<double>>(
                                         const RecordedWindow&, const RecordedLayer&)>& measure) {
  LayerSums sums(static_cast<size_t>(bench.config().num_layers));
  RETURN_IF_ERROR(ObserveWindows(bench, sample, offset, [&](const RecordedWindow& window) {
    return ForEachOf(sums.size(), [&](size_t layer) {
      ASSIGN_OR_RETURN(std::vector<double> of_layer, measure(window, window.layers[layer]));
      sums[layer].push_back(std::move(of_layer));
      return absl::OkStatus();
    });
  }));
  return sums;
}

std::vector<std::vector<double>> AllLayers(const LayerSums& sums) {
  std::vector<std::vector<double>> all = sums.front();
  for (size_t layer = 1; layer < sums.size(); ++layer) {
    for (size_t window = 0; window < all.size(); ++window) {
      for (size_t i = 0; i < all[window].size(); ++i) all[window][i] += sums[layer][window][i];
    }
  }
  return all;
}

TableCell EstimateCell(const Estimate& estimate, std::optional<double> paper) {
  TableCell cell = {.value = estimate.value, .paper = paper};
  if (estimate.value && estimate.half_width) {
    cell.interval =
        std::pair(*estimate.value - *estimate.half_width, *estimate.value + *estimate.half_width);
  }
  return cell;
}

TableCell RatioCell(std::span<const std::vector<double>> windows, size_t numerator,
                    size_t denominator, std::optional<double> paper) {
  return EstimateCell(JackknifeRatio(windows, numerator, denominator), paper);
}

std::optional<FigurePoint> PointOf(double x, const TableCell& cell) {
  if (!cell.value) return std::nullopt;
  const auto [low, high] = cell.interval.value_or(std::pair(*cell.value, *cell.value));
  return FigurePoint{x, *cell.value, low, high};
}

FigureLine LineOf(const std::string& name, size_t count,
                  const std::function<TableCell(size_t)>& cell) {
  FigureLine line = {.name = name, .points = {}, .dots = true};
  for (size_t i = 0; i < count; ++i) {
    const auto point = PointOf(static_cast<double>(i), cell(i));
    if (point) line.points.push_back(*point);
  }
  return line;
}

double TotalOf(std::span<const std::vector<double>> windows, size_t index) {
  double total = 0.0;
  for (const std::vector<double>& window : windows) total += window[index];
  return total;
}

}  // namespace eta
