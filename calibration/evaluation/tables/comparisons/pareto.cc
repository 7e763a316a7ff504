// What a budget buys: operating offsets of the product, and shares of rivals, against perplexity,
// recall and retrieval.

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/needles/needle_evaluation.h"
#include "calibration/evaluation/tables/comparisons/arms.h"
#include "calibration/evaluation/tables/comparisons/block_misses.h"
#include "calibration/evaluation/tables/comparisons/comparisons.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr int32_t kMissStride = 8;  // rows of which one is looked at for missed blocks
constexpr int32_t kNeedleContext = 4096;
constexpr int32_t kNeedleWindows = 9;  // depths, the paper's

// 0: the paper has none.
struct PaperPareto {
  double head, join, recall, missed, perplexity;
};

struct Point {
  std::string family;
  std::string name;
  std::optional<PaperPareto> paper = std::nullopt;
  bool quick = false;  // also in a quick run
};

// With a gate: the product's form, and the paper's with blocks of 64 and of 4.
void AddGated(std::vector<Point>& points) {
  for (const double a : {-2.5, -1.8, -1.0, -0.4, 0.0, 0.4}) {
    points.push_back({.family = "default",
                      .name = absl::StrFormat("dynamic+offset=%.1f", a),
                      .quick = a == -1.8 || a == 0.0});
  }
  const std::pair<double, PaperPareto> coarse[] = {{0.2, {.553, .790, .984, .123, 18.30}},
                                                   {-0.4, {.483, .697, .973, .166, 18.60}},
                                                   {-1.0, {.427, .604, .956, .213, 18.87}},
                                                   {-1.8, {.376, .496, .916, .283, 19.21}}};
  for (const auto& [a, paper] : coarse) {
    points.push_back({.family = "paper, b=64",
                      .name = absl::StrFormat("dynamic+floor=none+z=2+offset=%.1f", a),
                      .paper = paper,
                      .quick = a == -0.4 || a == -1.8});
  }
  const std::pair<double, PaperPareto> fine[] = {
      {0.4, {.363, .666, .983, .071, 17.56}},  {0.0, {.320, .612, .978, .089, 17.61}},
      {-0.8, {.244, .506, .971, .121, 17.82}}, {-1.5, {.189, .417, .960, .161, 18.22}},
      {-2.0, {.157, .356, .954, .188, 18.81}}, {-2.5, {.131, .301, .948, .212, 19.81}}};
  for (const auto& [a, paper] : fine) {
    points.push_back({.family = "paper, b=4",
                      .name = absl::StrFormat(
                          "dynamic+floor=none+z=2+block_size=4+pinned_blocks=0+offset=%.1f", a),
                      .paper = paper,
                      .quick = a == -0.8});
  }
}

void AddRelative(std::vector<Point>& points) {
  for (const double c : {-6.4, -5.7, -5.0, -4.3, -3.6, -2.9}) {
    points.push_back({.family = "default",
                      .name = absl::StrFormat("relative:%.1f", c),
                      .quick = c == -5.0 || c == -3.6});
  }
  for (const double c : {-5.0, -3.6}) {
    points.push_back(
        {.family = "own reads", .name = absl::StrFormat("relative:%.1f+reads=own", c)});
  }
  for (const double c : {-5.0, -4.3, -3.6}) {
    points.push_back({.family = "oracle", .name = absl::StrFormat("oracle:%.1f", c)});
  }
}

// Quest's shares, two layers dense, and windows of H2O with as many heavy hitters as make up 38, 25
// and 10 % of 2048 keys.
void AddRivals(std::vector<Point>& points) {
  points.push_back(
      {.family = "Quest", .name = "quest:0.38", .paper = PaperPareto{.411, .667, .540, 0, 18.17}});
  points.push_back({.family = "Quest",
                    .name = "quest:0.25",
                    .paper = PaperPareto{.265, .473, .366, 0, 19.26},
                    .quick = true});
  points.push_back(
      {.family = "Quest", .name = "quest:0.1", .paper = PaperPareto{.128, .242, .194, 0, 22.37}});
  points.push_back(
      {.family = "H2O", .name = "h2o:256:0.29", .paper = PaperPareto{.48, .68, 0, 0, 17.59}});
  points.push_back({.family = "H2O",
                    .name = "h2o:128:0.198",
                    .paper = PaperPareto{.332, .543, 0, 0, 17.71},
                    .quick = true});
  points.push_back(
      {.family = "H2O", .name = "h2o:64:0.069", .paper = PaperPareto{.175, .288, 0, 0, 17.91}});
  for (const char* name : {"h2o_blocks:256:0.255", "h2o_blocks:128:0.188", "h2o_blocks:64:0.069"}) {
    points.push_back({.family = "H2O by block", .name = name});
  }
}

std::vector<Point> Points(TableBench& bench) {
  std::vector<Point> points = {{.family = "full",
                                .name = "full",
                                .paper = PaperPareto{1.0, 1.0, 1.0, 0, 17.49},
                                .quick = true}};
  if (bench.config().gate == Gate::kNone) {
    AddRelative(points);
  } else {
    AddGated(points);
  }
  AddRivals(points);
  if (bench.quick()) std::erase_if(points, [](const Point& point) { return !point.quick; });
  return points;
}

class Pareto {
 public:
  explicit Pareto(TableBench& bench)
      : bench_(bench),
        misses_(bench.runtime().shared_backend(), bench.config().gate == Gate::kSilu, kMissStride,
                bench.rivals().num_threads()),
        arms_(bench, bench.Context(2048, 1024), &misses_),
        needle_arms_(bench, bench.Context(kNeedleContext, 2048)) {}

  absl::StatusOr<Table> Measure() {
    const std::vector<Point> points = Points(bench_);
    const BenchText text = bench_.Texts().front();
    ASSIGN_OR_RETURN(const auto windows,
                     bench_.Windows(text, arms_.context(), bench_.Samples(16, 2)));
    ASSIGN_OR_RETURN(const auto needles, Needles(text));
    const int32_t prefill = arms_.context() / 2;
    Table table = {.name = "pareto",
                   .title = "Reads against quality",
                   .method =
                       "Perplexity of the second half of each window, decoded. Recall: the share "
                       "of the keys at or above their threshold that the head attends to. Missed: "
                       "the share of the blocks with such a key that the head does not attend to, "
                       "blocks that are always read left out, on one row in eight; with relative "
                       "thresholds a block counts that reaches the threshold with its mass. Ways "
                       "that choose single keys have neither. Intervals of perplexity are over "
                       "windows, of which 4 are the least. Needles: the share of windows in which "
                       "every token of the answer was the likeliest (Wilson's interval), all "
                       "before the question a prompt.",
                   .paper = "Table 3 and its appendix, 1.45B, C4 at 2048 tokens",
                   .counted = "tokens",
                   .settings = {{"text", text.name},
                                {"context", absl::StrCat(arms_.context())},
                                {"prompt", absl::StrCat(prefill)},
                                {"needle context", absl::StrCat(needle_arms_.context())}},
                   .keys = {"family", "attention"},
                   .columns = {Percent("head"),
                               Percent("union"),
                               Percent("bytes"),
                               Percent("recall"),
                               Percent("missed"),
                               {.name = "perplexity", .digits = 3},
                               Percent("needles")}};
    LineChart chart = {.title = "Perplexity by bytes read",
                       .x_label = "bytes of K, V and index over all K and V",
                       .lines = {}};
    std::vector<std::string> names;
    for (const Point& point : points) names.push_back(point.name);
    total_ = std::ssize(points) * (std::ssize(windows) + std::ssize(needles));
    std::vector<MissCounts> misses(points.size());
    ASSIGN_OR_RETURN(const auto scores,
                     arms_.Scores(names, windows, prefill, /*recall=*/true, [&](size_t way) {
                       misses_.CountInto(&misses[way]);
                       bench_.Progress(done_++, total_);
                     }));
    misses_.CountInto(nullptr);
    ASSIGN_OR_RETURN(const auto found, Found(names, needles));
    for (size_t i = 0; i < points.size(); ++i) {
      ASSIGN_OR_RETURN(const EvaluatedAttention way, arms_.Attention(names[i]));
      const bool by_key = way.rival && way.rival->by_key();
      table.rows.push_back(Row(points[i], scores[i], by_key ? MissCounts() : misses[i], found[i]));
      if (points[i].family != "full") Draw(points[i].family, scores[i], chart);
    }
    table.figures.push_back(std::move(chart));
    return table;
  }

 private:
  absl::StatusOr<std::vector<NeedleWindow>> Needles(const BenchText& text) {
    ASSIGN_OR_RETURN(std::unique_ptr<TextSource> source, TextSource::Open(text.path));
    return ReadNeedleWindows(*source, bench_.tokenizer(),
                             {.context = needle_arms_.context(),
                              .windows = bench_.Samples(kNeedleWindows, 3),
                              .seed = bench_.settings().seed});
  }

  absl::StatusOr<std::vector<TableCell>> Found(const std::vector<std::string>& names,
                                               const std::vector<NeedleWindow>& windows) {
    std::vector<EvaluatedAttention> ways;
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(EvaluatedAttention way, needle_arms_.Attention(name));
      ways.push_back(std::move(way));
    }
    ASSIGN_OR_RETURN(const auto scores,
                     EvaluateNeedles(needle_arms_.runners().Source(), windows, ways,
                                     {.special_ids = bench_.tokenizer().special_ids(),
                                      .rivals = &bench_.rivals(),
                                      .progress = [this](int64_t, int64_t) {
                                        bench_.Progress(++done_, total_);
                                      }}));
    std::vector<TableCell> found;
    for (const NeedleScore& score : scores) {
      found.push_back(ShareCell(score.found(), std::ssize(windows)));
    }
    return found;
  }

  static TableRow Row(const Point& point, const AttentionScore& score, const MissCounts& misses,
                      const TableCell& found) {
    const auto tokens = static_cast<int64_t>(score.losses.size());
    const auto paper = [&](double PaperPareto::*member) -> std::optional<double> {
      if (!point.paper || (*point.paper).*member == 0.0) return std::nullopt;
      return (*point.paper).*member;
    };
    TableCell recall = score.recall ? PlainCell(*score.recall) : TableCell();
    // A rival's rows have the thresholds that the model would have used.
    if (!score.recall && misses.keys > 0)
      recall = PlainCell(1.0 - Share(misses.missed_keys, misses.keys));
    TableCell missed;
    if (misses.blocks > 0)
      missed = PlainCell(Share(misses.missed_blocks, misses.blocks), misses.blocks);
    return {
        .labels = {point.family, point.name},
        .cells = {WithPaper(PlainCell(score.head_density), paper(&PaperPareto::head)),
                  WithPaper(PlainCell(score.union_density), paper(&PaperPareto::join)),
                  PlainCell(score.bytes_read()), WithPaper(recall, paper(&PaperPareto::recall)),
                  WithPaper(missed, paper(&PaperPareto::missed)),
                  WithPaper(ExpCell(score.loss, tokens), paper(&PaperPareto::perplexity)), found},
        .n = tokens};
  }

  static double Share(int64_t part, int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(whole);
  }

  static void Draw(const std::string& family, const AttentionScore& score, LineChart& chart) {
    auto line = std::ranges::find(chart.lines, family, &FigureLine::name);
    if (line == chart.lines.end()) {
      chart.lines.push_back({.name = family, .points = {}, .dots = true});
      line = chart.lines.end() - 1;
    }
    line->points.push_back({.x = score.bytes_read(), .y = std::exp(score.loss.mean)});
    std::ranges::sort(line->points, {}, &FigurePoint::x);
  }

  TableBench& bench_;
  BlockMisses misses_;  // outlives the arms that run through it
  ArmBench arms_;
  ArmBench needle_arms_;
  int64_t done_ = 0;  // windows of points
  int64_t total_ = 0;
};

}  // namespace

absl::StatusOr<Table> MeasurePareto(TableBench& bench) {
  return Pareto(bench).Measure();
}

}  // namespace eta
