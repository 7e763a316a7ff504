#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/tables/diagnostics/diagnostics.h"
#include "calibration/evaluation/tables/diagnostics/observation.h"
#include "calibration/evaluation/tables/measures/active_density.h"
#include "calibration/evaluation/tables/measures/document_variance.h"
#include "calibration/evaluation/tables/measures/threshold_regression.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

// In the order of kRowStatisticNames, and of all together.
constexpr std::array<double, kRowStatistics> kPaperShares = {0.187, 0.176, 0.168, 0.156,
                                                             0.091, 0.071, 0.059, 0.021};
constexpr double kPaperJoint = 0.327;
constexpr double kPaperBetween = 0.30;

// One head of one layer: [windows] each.
struct Head {
  std::vector<std::vector<double>> moments;     // RegressionSums
  std::vector<std::vector<double>> thresholds;  // [rows]
  std::vector<std::vector<double>> densities;   // [rows]
};

// The mean over the heads in which the statistic is defined.
std::optional<double> MeanOver(const std::vector<Head>& heads,
                               const std::function<std::optional<double>(const Head&)>& statistic) {
  double sum = 0.0;
  int64_t count = 0;
  for (const Head& head : heads) {
    const std::optional<double> value = statistic(head);
    if (!value) continue;
    sum += *value;
    ++count;
  }
  return count > 0 ? std::optional(sum / static_cast<double>(count)) : std::nullopt;
}

std::vector<double> SumsWithout(const Head& head, std::optional<size_t> without) {
  std::vector<double> sums(kRegressionSums);
  for (size_t window = 0; window < head.moments.size(); ++window) {
    if (window == without) continue;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += head.moments[window][i];
  }
  return sums;
}

// R^2 of a statistic, or of all, as the mean over heads.
Estimate Explained(const std::vector<Head>& heads, std::optional<size_t> statistic) {
  return Jackknife(heads.front().moments.size(), [&](std::optional<size_t> without) {
    return MeanOver(heads, [&](const Head& head) {
      return ExplainedShare(SumsWithout(head, without), statistic);
    });
  });
}

Estimate Between(const std::vector<Head>& heads, std::vector<std::vector<double>> Head::*of) {
  return Jackknife((heads.front().*of).size(), [&](std::optional<size_t> without) {
    return MeanOver(heads, [&](const Head& head) { return BetweenDocuments(head.*of, without); });
  });
}

// Of the density that is the mean over all heads, as the paper writes it: d of a row.
Estimate BetweenOfMeans(const std::vector<Head>& heads) {
  std::vector<std::vector<double>> mean = heads.front().densities;
  for (size_t h = 1; h < heads.size(); ++h) {
    for (size_t window = 0; window < mean.size(); ++window) {
      for (size_t r = 0; r < mean[window].size(); ++r) {
        mean[window][r] += heads[h].densities[window][r];
      }
    }
  }
  return Jackknife(mean.size(),
                   [&](std::optional<size_t> without) { return BetweenDocuments(mean, without); });
}

absl::StatusOr<std::vector<Head>> ObserveHeads(TableBench& bench, const DiagnosticSample& sample) {
  const auto layers = static_cast<size_t>(bench.config().num_layers);
  const auto heads = static_cast<size_t>(bench.config().num_query_heads);
  std::vector<Head> all(layers * heads);
  RETURN_IF_ERROR(ObserveWindows(bench, sample, 0.0f, [&](const RecordedWindow& window) {
    return ForEachOf(layers, [&](size_t l) {
      const RecordedLayer& layer = window.layers[l];
      const auto densities = ActiveDensities(window, layer);
      for (size_t h = 0; h < heads; ++h) {
        Head& head = all[l * heads + h];
        head.moments.push_back(RegressionSums(window, layer, static_cast<int32_t>(h)));
        head.densities.push_back(densities[h]);
        std::vector<double>& thresholds = head.thresholds.emplace_back();
        for (const RecordedRow& row : layer.rows) thresholds.push_back(row.thresholds[h]);
      }
      return absl::OkStatus();
    });
  }));
  return all;
}

}  // namespace

absl::StatusOr<Table> MeasureContextuality(TableBench& bench) {
  if (!bench.config().has_predictor) {
    return absl::FailedPreconditionError("model: predicts no thresholds that could be explained");
  }
  ASSIGN_OR_RETURN(const DiagnosticSample sample, TakeSample(bench));
  ASSIGN_OR_RETURN(const std::vector<Head> heads, ObserveHeads(bench, sample));

  Table table = {
      .name = "contextuality",
      .title = "What explains thresholds, and whether they follow the document",
      .method = absl::StrCat(
          "R^2 of least squares on statistics of the row, per layer and head, then the mean over "
          "heads; scores before the gate. Between windows: one-way ANOVA after the mean over "
          "windows was taken off at every position; density is the share of keys at or above the "
          "threshold; the rest of the variance lies within windows. ",
          SampleText(sample), " ", kWindowIntervals),
      .paper = "its table of R^2 and its ANOVA of densities, about 0.30: 126M parameters, C4",
      .counted = "rows",
      .keys = {"share of variance"},
      .columns = {{.name = "share"}}};
  const auto add = [&](const std::string& label, const Estimate& estimate,
                       std::optional<double> paper) {
    table.rows.push_back(
        {.labels = {label}, .cells = {EstimateCell(estimate, paper)}, .n = sample.Rows()});
  };
  for (size_t i = 0; i < kRowStatistics; ++i) {
    add(absl::StrCat("R^2, ", kRowStatisticNames[i]), Explained(heads, i), kPaperShares[i]);
  }
  add("R^2, all eight", Explained(heads, std::nullopt), kPaperJoint);
  const TableCell joint = table.rows.back().cells.front();
  if (joint.value) {
    table.findings.push_back(absl::StrFormat(
        "Eight statistics of the row explain %.0f %% of a threshold's variance; the "
        "paper reports %.0f %%.",
        100.0 * *joint.value, 100.0 * kPaperJoint));
  }
  add("between windows, density of all heads", BetweenOfMeans(heads), kPaperBetween);
  add("between windows, density of a head", Between(heads, &Head::densities), std::nullopt);
  add("between windows, threshold of a head", Between(heads, &Head::thresholds), std::nullopt);
  return table;
}

}  // namespace eta
