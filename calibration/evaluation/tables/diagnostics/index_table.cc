#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/tables/diagnostics/diagnostics.h"
#include "calibration/evaluation/tables/diagnostics/observation.h"
#include "calibration/evaluation/tables/measures/block_bounds.h"
#include "calibration/evaluation/tables/measures/index_quality.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr float kPaperOffset = 0.4f;
constexpr float kPaperZ = 2.0f;
constexpr float kDefaultZ = 1.5f;

std::vector<BoundSpec> Specs(int32_t context) {
  std::vector<BoundSpec> specs;
  for (const BoundSpec& kind : {BoundSpec{.kind = BoundKind::kFlat, .z = kPaperZ},
                                BoundSpec{.kind = BoundKind::kEnvelope, .z = kPaperZ},
                                BoundSpec{.kind = BoundKind::kEnvelope, .z = kDefaultZ},
                                BoundSpec{.kind = BoundKind::kOutlier, .z = kDefaultZ},
                                BoundSpec{.kind = BoundKind::kBox}}) {
    for (const int32_t block_size : {4, 16, 32, 64, 128}) {
      if (block_size > context / 2) continue;
      BoundSpec spec = kind;
      spec.block_size = block_size;
      specs.push_back(spec);
    }
  }
  return specs;
}

struct Column {
  const char* name;
  size_t numerator;
  size_t denominator;
};
constexpr Column kColumns[] = {{"false_negatives", kFalseNegative, kNeeded},
                               {"false_positives", kFalsePositive, kUnneeded},
                               {"recall", kAboveAdmitted, kAbove},
                               {"missed_mass", kMissedMass, kIndexTerms},
                               {"attended", kAttended, kIndexTerms}};

constexpr size_t kRecallColumn = 2;
constexpr size_t kAttendedColumn = 4;

// Of flat records, in the order of the columns.
std::optional<double> PaperFigure(const BoundSpec& spec, size_t column) {
  static const std::map<int32_t, std::vector<double>> rows = {{4, {0.034, 0.308, 0.983, 0.102}},
                                                              {16, {0.117, 0.168, 0.969, 0.215}},
                                                              {64, {0.275, 0.056, 0.953, 0.363}}};
  const auto found = rows.find(spec.block_size);
  if (spec.kind != BoundKind::kFlat || found == rows.end()) return std::nullopt;
  return column < found->second.size() ? std::optional(found->second[column]) : std::nullopt;
}

// The sums of window `window` that belong to one spec.
std::vector<std::vector<double>> Part(const std::vector<std::vector<double>>& windows,
                                      size_t spec) {
  std::vector<std::vector<double>> part;
  for (const std::vector<double>& window : windows) {
    const auto begin = window.begin() + static_cast<std::ptrdiff_t>(spec * kIndexSums);
    part.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(kIndexSums));
  }
  return part;
}

LineChart RecallOverDensity(const Table& table) {
  LineChart chart = {.title = "recall of keys above the threshold over what is attended to",
                     .x_label = "attended, share of keys",
                     .y_label = "recall"};
  std::map<std::string, FigureLine> lines;
  for (const TableRow& row : table.rows) {
    const auto point =
        PointOf(row.cells[kAttendedColumn].value.value_or(0.0), row.cells[kRecallColumn]);
    if (!point) continue;
    FigureLine& line = lines[absl::StrCat(row.labels[0], " z=", row.labels[1])];
    line.dots = true;
    line.points.push_back(*point);
  }
  for (auto& [name, line] : lines) {
    line.name = name;
    std::ranges::sort(line.points, {}, &FigurePoint::x);
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

}  // namespace

absl::StatusOr<Table> MeasureIndex(TableBench& bench) {
  ASSIGN_OR_RETURN(const DiagnosticSample sample, TakeSample(bench));
  const std::vector<BoundSpec> specs = Specs(sample.context);
  const float offset = bench.config().has_predictor ? kPaperOffset : 0.0f;
  ASSIGN_OR_RETURN(
      const auto sums,
      SumByLayer(bench, sample, offset,
                 [&](const RecordedWindow& window,
                     const RecordedLayer& layer) -> absl::StatusOr<std::vector<double>> {
                   std::vector<BlockBounds> indices;
                   for (const BoundSpec& spec : specs) {
                     ASSIGN_OR_RETURN(BlockBounds bounds, BlockBounds::Of(window, layer, spec));
                     indices.push_back(std::move(bounds));
                   }
                   std::vector<double> of_specs;
                   for (const auto& one : IndexQualitySums(window, layer, indices)) {
                     of_specs.insert(of_specs.end(), one.begin(), one.end());
                   }
                   return of_specs;
                 }));
  const auto all = AllLayers(sums);

  Table table = {
      .name = "index",
      .title = "What an index misses and admits needlessly",
      .method = absl::StrCat(
          "The bound alone decides on full blocks: none is a sink, pinned or rescued. False "
          "negatives: the share of the blocks with a key at or above the threshold that are "
          "rejected. False positives: the share of the other blocks that are admitted. Recall: the"
          " share of the keys at or above the threshold that lie in admitted blocks or the tail. "
          "Missed mass: the share of full attention's softmax in rejected blocks. Attended: the "
          "share of all keys in admitted blocks and the tail. ",
          ThresholdText(bench.config()), " ", SampleText(sample), " ", kWindowIntervals),
      .paper = "its table of variance dilution: 1.45B parameters, FineWeb, 2048 tokens",
      .counted = "rows of a head",
      .settings = {{"offset", absl::StrFormat("%.1f", offset)}},
      .keys = {"index", "z", "b"}};
  for (const Column& column : kColumns) {
    table.columns.push_back(Percent(column.name, 2));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto part = Part(all, i);
    const bool box = specs[i].kind == BoundKind::kBox;
    TableRow& row = table.rows.emplace_back();
    row.labels = {Name(specs[i].kind), box ? "-" : absl::StrFormat("%.1f", specs[i].z),
                  absl::StrCat(specs[i].block_size)};
    row.n = static_cast<int64_t>(TotalOf(part, kIndexTerms));
    for (size_t column = 0; column < std::size(kColumns); ++column) {
      row.cells.push_back(RatioCell(part, kColumns[column].numerator, kColumns[column].denominator,
                                    PaperFigure(specs[i], column)));
    }
  }
  table.figures.push_back(RecallOverDensity(table));
  return table;
}

}  // namespace eta
