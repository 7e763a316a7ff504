#include "training/progress/curves.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eta::training {
namespace {

constexpr double kWidth = 860.0;
constexpr double kLeft = 60.0;
constexpr double kRight = 180.0;  // where the names stand
constexpr double kChartHeight = 220.0;
constexpr double kGap = 50.0;
constexpr size_t kMostPoints = 400;
constexpr int kTicks = 5;
constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd"};

struct Point {
  double step;
  double value;
};

struct Series {
  std::string name;
  std::vector<Point> points;
  bool dots = false;
};

struct Chart {
  std::string name;
  double top;
  double low, high;  // of the values
  double steps;      // of the abscissa

  double X(double step) const {
    return kLeft + (kWidth - kLeft - kRight) * (steps > 0.0 ? step / steps : 0.0);
  }
  double Y(double value) const { return top + kChartHeight * (1.0 - (value - low) / (high - low)); }
};

void Add(Series& series, int64_t step, std::optional<double> value) {
  if (value && std::isfinite(*value)) {
    series.points.push_back({static_cast<double>(step), *value});
  }
}

// Means of stretches of equal length.
std::vector<Point> Thinned(const std::vector<Point>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<Point> thin;
  for (size_t i = 0; i < kMostPoints; ++i) {
    const size_t begin = i * points.size() / kMostPoints;
    const size_t end = (i + 1) * points.size() / kMostPoints;
    Point mean{0.0, 0.0};
    for (size_t j = begin; j < end; ++j) {
      mean.step += points[j].step / static_cast<double>(end - begin);
      mean.value += points[j].value / static_cast<double>(end - begin);
    }
    thin.push_back(mean);
  }
  return thin;
}

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      default:
        escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return escaped;
}

void DrawAxes(const Chart& chart, std::string& svg) {
  absl::StrAppendFormat(&svg, "<text x=\"%.0f\" y=\"%.0f\" font-weight=\"bold\">%s</text>\n", kLeft,
                        chart.top - 8.0, chart.name);
  for (int i = 0; i <= kTicks; ++i) {
    const double share = static_cast<double>(i) / kTicks;
    const double value = chart.low + (chart.high - chart.low) * share;
    absl::StrAppendFormat(&svg,
                          "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#ddd\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>\n",
                          kLeft, chart.Y(value), kWidth - kRight, kLeft - 6.0, chart.Y(value) + 4.0,
                          value);
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n",
                          chart.X(chart.steps * share), chart.top + kChartHeight + 16.0,
                          chart.steps * share);
  }
}

void DrawSeries(const Chart& chart, const Series& series, size_t index, std::string& svg) {
  const char* colour = kColours[index % std::size(kColours)];
  const std::vector<Point> points = Thinned(series.points);
  std::string path;
  for (const Point& point : points) {
    absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", chart.X(point.step),
                          chart.Y(point.value));
    if (series.dots) {
      absl::StrAppendFormat(&svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                            chart.X(point.step), chart.Y(point.value), colour);
    }
  }
  if (!path.empty()) {
    absl::StrAppendFormat(&svg, "<path d=\"%s\" fill=\"none\" stroke=\"%s\"%s/>\n", path, colour,
                          series.dots ? " stroke-dasharray=\"3 3\"" : "");
  }
  absl::StrAppendFormat(
      &svg, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%s</text>\n", kWidth - kRight + 10.0,
      chart.top + 14.0 + 18.0 * static_cast<double>(index), colour, Escaped(series.name));
}

void DrawChart(Chart chart, const std::vector<Series>& all, bool from_zero, std::string& svg) {
  chart.low = from_zero ? 0.0 : std::numeric_limits<double>::infinity();
  chart.high = from_zero ? 1.0 : -std::numeric_limits<double>::infinity();
  for (const Series& series : all) {
    for (const Point& point : Thinned(series.points)) {
      chart.low = std::min(chart.low, point.value);
      chart.high = std::max(chart.high, point.value);
    }
  }
  if (!(chart.low <= chart.high)) chart.low = chart.high = 0.0;
  if (chart.low == chart.high) chart.high = chart.low + 1.0;
  DrawAxes(chart, svg);
  size_t index = 0;
  for (const Series& series : all) {
    if (!series.points.empty()) DrawSeries(chart, series, index++, svg);
  }
}

}  // namespace

std::string SvgCurves(const RunHistory& history, const std::string& title) {
  Series loss{"loss"}, answers{"answers"}, full{"held-out, full", {}, true},
      sparse{"held-out, sparse", {}, true};
  Series heads{"mean gate"}, blocks{"largest gate by block"},
      head_density{"decoded, by head", {}, true}, union_density{"decoded, union", {}, true};
  double steps = 0.0;
  for (const StepRecord& record : history.steps) {
    steps = std::max(steps, static_cast<double>(record.step));
    Add(loss, record.step, record.loss);
    Add(answers, record.step, record.answer_loss);
    Add(heads, record.step, record.head_density);
    Add(blocks, record.step, record.block_density);
  }
  for (const EvaluationRecord& record : history.evaluations) {
    steps = std::max(steps, static_cast<double>(record.step));
    Add(full, record.step, std::log(record.full_perplexity));
    if (!record.sparse_perplexity) continue;
    Add(sparse, record.step, std::log(*record.sparse_perplexity));
    Add(head_density, record.step, record.head_density);
    Add(union_density, record.step, record.union_density);
  }
  const double height = 2.0 * (kChartHeight + kGap) + 40.0;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"%.0f\" y=\"20\" font-size=\"14\">%s</text>\n",
      kWidth, height, kLeft, Escaped(title));
  DrawChart({.name = "Loss, nats per token", .top = 50.0, .steps = steps},
            {loss, answers, full, sparse}, /*from_zero=*/false, svg);
  DrawChart({.name = "Density", .top = 50.0 + kChartHeight + kGap, .steps = steps},
            {heads, blocks, head_density, union_density}, /*from_zero=*/true, svg);
  return svg + "</svg>\n";
}

}  // namespace eta::training
