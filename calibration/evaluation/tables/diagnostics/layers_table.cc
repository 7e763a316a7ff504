#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/tables/diagnostics/diagnostics.h"
#include "calibration/evaluation/tables/diagnostics/observation.h"
#include "calibration/evaluation/tables/measures/active_density.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

// Sums over the decode rows of one window in one layer, and their numbers.
struct LayerDensities {
  std::vector<double> active;    // [HQ]; of recorded rows
  std::vector<double> attended;  // [HQ]; of all rows
  double read = 0.0;             // over KV heads
  double recorded_rows = 0.0;
  double rows = 0.0;
};

class LayersRun {
 public:
  LayersRun(TableBench& bench, const DiagnosticSample& sample)
      : bench_(bench),
        sample_(sample),
        layers_(static_cast<size_t>(bench.config().num_layers)),
        heads_(static_cast<size_t>(bench.config().num_query_heads)),
        kv_heads_(static_cast<size_t>(bench.config().num_kv_heads)) {}

  // [L][windows]
  absl::StatusOr<std::vector<std::vector<LayerDensities>>> Measure() {
    ASSIGN_OR_RETURN(const auto attention, bench_.Attention("dynamic", bench_.Geometry()));
    std::vector<std::vector<LayerDensities>> densities(layers_);
    const auto feed = [&](SequenceRunner& runner, std::span<const int32_t> rows) -> absl::Status {
      for (auto& layer : densities) {
        layer.push_back({std::vector<double>(heads_), std::vector<double>(heads_)});
      }
      RETURN_IF_ERROR(runner.RunPrompt(rows.first(static_cast<size_t>(sample_.rows.first))));
      return Decode(runner, rows, densities);
    };
    const auto visit = [&](const RecordedWindow& window) {
      return ForEachOf(layers_, [&](size_t l) {
        AddActive(window, l, densities[l].back());
        return absl::OkStatus();
      });
    };
    RETURN_IF_ERROR(ObserveWindows(bench_, sample_, attention, feed, visit));
    return densities;
  }

 private:
  absl::Status Decode(SequenceRunner& runner, std::span<const int32_t> rows,
                      std::vector<std::vector<LayerDensities>>& densities) const {
    const auto step = static_cast<size_t>(runner.max_rows());
    std::vector<int32_t> attended(layers_ * step * heads_);
    std::vector<int32_t> read(layers_ * step * kv_heads_);
    for (size_t begin = static_cast<size_t>(runner.position()); begin < rows.size();
         begin += step) {
      const size_t count = std::min(step, rows.size() - begin);
      RETURN_IF_ERROR(runner.Run(
          {.tokens = rows.subspan(begin, count),
           .outputs = {.tokens_attended = attended.data(), .tokens_read = read.data()}}));
      for (size_t l = 0; l < layers_; ++l) {
        LayerDensities& layer = densities[l].back();
        for (size_t i = 0; i < count; ++i) {
          const auto keys = static_cast<double>(begin + i + 1);
          const int32_t* of_row = attended.data() + (l * count + i) * heads_;
          for (size_t h = 0; h < heads_; ++h) layer.attended[h] += of_row[h] / keys;
          const int32_t* of_kv = read.data() + (l * count + i) * kv_heads_;
          for (size_t h = 0; h < kv_heads_; ++h) layer.read += of_kv[h] / keys;
        }
        layer.rows += static_cast<double>(count);
      }
    }
    return absl::OkStatus();
  }

  void AddActive(const RecordedWindow& window, size_t l, LayerDensities& layer) const {
    const auto densities = ActiveDensities(window, window.layers[l]);
    for (size_t h = 0; h < heads_; ++h) {
      for (const double density : densities[h]) layer.active[h] += density;
    }
    layer.recorded_rows += static_cast<double>(densities.front().size());
  }

  TableBench& bench_;
  const DiagnosticSample& sample_;
  size_t layers_;
  size_t heads_;
  size_t kv_heads_;
};

constexpr size_t kActive = 0;
constexpr size_t kActiveTerms = 1;
constexpr size_t kAttendedKeys = 2;
constexpr size_t kAttendedTerms = 3;
constexpr size_t kRead = 4;
constexpr size_t kReadTerms = 5;

// The sums of one layer's windows, over its heads.
std::vector<std::vector<double>> Sums(const std::vector<LayerDensities>& windows, double kv_heads) {
  std::vector<std::vector<double>> sums;
  for (const LayerDensities& window : windows) {
    std::vector<double>& of_window = sums.emplace_back(6);
    for (size_t h = 0; h < window.active.size(); ++h) {
      of_window[kActive] += window.active[h];
      of_window[kAttendedKeys] += window.attended[h];
    }
    const auto heads = static_cast<double>(window.active.size());
    of_window[kActiveTerms] = window.recorded_rows * heads;
    of_window[kAttendedTerms] = window.rows * heads;
    of_window[kRead] = window.read;
    of_window[kReadTerms] = window.rows * kv_heads;
  }
  return sums;
}

// The mean of one head of a layer.
double HeadMean(const std::vector<LayerDensities>& windows, size_t head,
                std::vector<double> LayerDensities::*of, double LayerDensities::*rows) {
  double sum = 0.0;
  double count = 0.0;
  for (const LayerDensities& window : windows) {
    sum += (window.*of)[head];
    count += window.*rows;
  }
  return sum / count;
}

HeatMap Heads(const std::vector<std::vector<LayerDensities>>& densities, const std::string& title,
              std::vector<double> LayerDensities::*of, double LayerDensities::*rows) {
  HeatMap map = {.title = title, .x_label = "query head", .y_label = "layer"};
  for (const auto& layer : densities) {
    std::vector<double>& row = map.values.emplace_back();
    for (size_t h = 0; h < layer.front().active.size(); ++h) {
      row.push_back(HeadMean(layer, h, of, rows));
    }
  }
  return map;
}

}  // namespace

absl::StatusOr<Table> MeasureLayers(TableBench& bench) {
  ASSIGN_OR_RETURN(const DiagnosticSample sample, TakeSample(bench));
  ASSIGN_OR_RETURN(const auto densities, LayersRun(bench, sample).Measure());

  Table table = {
      .name = "layers",
      .title = "Density by layer and head",
      .method = absl::StrCat(
          "Decode rows attend with the model's defaults. Active: the share of the T keys that are "
          "at or above the threshold, on chosen rows. Head and union: tokens attended and tokens "
          "read over T, in whole blocks. Least and most: the heads of the layer that attend to the "
          "fewest and to the most tokens. ",
          ThresholdText(bench.config()), " ", SampleText(sample), " ", kWindowIntervals),
      .paper = "its section on layers: layer 0 keeps about 96 % active, of 1.45B parameters",
      .counted = "decode rows",
      .keys = {"layer"}};
  for (const char* name : {"active", "head", "union", "least_head", "most_head"}) {
    table.columns.push_back(Percent(name, 2));
  }
  constexpr double kPaperFirstLayer = 0.96;
  LayerSums sums;
  const auto add = [&](const std::string& label, const std::vector<std::vector<double>>& of_layer,
                       std::optional<double> paper) {
    TableRow& row = table.rows.emplace_back();
    row.labels = {label};
    row.cells = {RatioCell(of_layer, kActive, kActiveTerms, paper),
                 RatioCell(of_layer, kAttendedKeys, kAttendedTerms),
                 RatioCell(of_layer, kRead, kReadTerms)};
  };
  for (size_t l = 0; l < densities.size(); ++l) {
    const auto& layer = densities[l];
    sums.push_back(Sums(layer, bench.config().num_kv_heads));
    add(absl::StrCat(l), sums.back(), l == 0 ? std::optional(kPaperFirstLayer) : std::nullopt);
    std::vector<double> heads;
    for (size_t h = 0; h < layer.front().attended.size(); ++h) {
      heads.push_back(HeadMean(layer, h, &LayerDensities::attended, &LayerDensities::rows));
    }
    TableRow& row = table.rows.back();
    row.cells.push_back(PlainCell(*std::ranges::min_element(heads)));
    row.cells.push_back(PlainCell(*std::ranges::max_element(heads)));
  }
  add("all", AllLayers(sums), std::nullopt);
  for (TableRow& row : table.rows) {
    row.n = (sample.context - sample.rows.first) * static_cast<int64_t>(sample.windows.size());
  }
  table.figures.push_back(Heads(densities, "tokens attended over T, by layer and head",
                                &LayerDensities::attended, &LayerDensities::rows));
  table.figures.push_back(Heads(densities, "keys at or above the threshold over T",
                                &LayerDensities::active, &LayerDensities::recorded_rows));
  return table;
}

}  // namespace eta
