#include "calibration/figures/svg.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eta {
namespace {

constexpr double kWidth = 860.0;
constexpr double kLeft = 60.0;
constexpr double kRight = 180.0;  // where the names stand
constexpr double kTitleHeight = 22.0;
constexpr double kChartHeight = 220.0;
constexpr double kFootHeight = 38.0;  // ticks and a label
constexpr double kGap = 12.0;
constexpr size_t kMostPoints = 400;
constexpr int kTicks = 5;
constexpr double kLargestSquare = 28.0;
constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e",
                                    "#8c564b", "#e377c2", "#7f7f7f", "#17becf", "#bcbd22"};

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

bool Finite(const FigurePoint& point) {
  return std::isfinite(point.x) && std::isfinite(point.y);
}

// Means of stretches of equal length.
std::vector<FigurePoint> Thinned(const std::vector<FigurePoint>& all) {
  std::vector<FigurePoint> points;
  std::ranges::copy_if(all, std::back_inserter(points), Finite);
  if (points.size() <= kMostPoints) return points;
  std::vector<FigurePoint> thin;
  for (size_t i = 0; i < kMostPoints; ++i) {
    const size_t begin = i * points.size() / kMostPoints;
    const size_t end = (i + 1) * points.size() / kMostPoints;
    FigurePoint mean;
    for (size_t j = begin; j < end; ++j) {
      mean.x += points[j].x / static_cast<double>(end - begin);
      mean.y += points[j].y / static_cast<double>(end - begin);
    }
    thin.push_back(mean);
  }
  return thin;
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Take(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Where there is nothing, or one value only, a range all the same.
  void Open() {
    if (!(low <= high)) low = high = 0.0;
    if (low == high) high = low + 1.0;
  }
  double Share(double value) const { return (value - low) / (high - low); }
  double At(double share) const { return low + (high - low) * share; }
};

// The place of one figure in the picture, and what draws into it.
class Canvas {
 public:
  Canvas(double top, std::string& svg) : top_(top), svg_(svg) {}

  void Title(const std::string& title) {
    absl::StrAppendFormat(&svg_, "<text x=\"%.0f\" y=\"%.0f\" font-weight=\"bold\">%s</text>\n",
                          kLeft, top_ + 14.0, Escaped(title));
  }
  void Text(double x, double y, const char* anchor, const std::string& text,
            const char* colour = "black") {
    absl::StrAppendFormat(&svg_,
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n",
                          x, y, anchor, colour, Escaped(text));
  }

  double top() const { return top_ + kTitleHeight; }
  std::string& svg() { return svg_; }

 private:
  double top_;
  std::string& svg_;
};

class ChartDrawing {
 public:
  ChartDrawing(const LineChart& chart, Canvas canvas) : chart_(chart), canvas_(canvas) {
    if (!chart.log_x) xs_.Take(0.0);
    if (chart.from_zero) {
      ys_.Take(0.0);
      ys_.Take(1.0);
    }
    for (const FigureLine& line : chart.lines) {
      lines_.push_back(Thinned(line.points));
      for (const FigurePoint& point : lines_.back()) {
        xs_.Take(Abscissa(point.x));
        ys_.Take(point.y);
        if (point.low < point.high) {
          ys_.Take(point.low);
          ys_.Take(point.high);
        }
      }
    }
    xs_.Open();
    ys_.Open();
  }

  void Draw() {
    canvas_.Title(chart_.title);
    Axes();
    size_t drawn = 0;
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (!lines_[i].empty()) Line(chart_.lines[i], lines_[i], drawn++);
    }
  }

 private:
  double Abscissa(double x) const { return chart_.log_x ? std::log2(x) : x; }
  double X(double x) const { return kLeft + (kWidth - kLeft - kRight) * xs_.Share(Abscissa(x)); }
  double Y(double y) const { return canvas_.top() + kChartHeight * (1.0 - ys_.Share(y)); }

  void Axes() {
    const double foot = canvas_.top() + kChartHeight;
    for (int i = 0; i <= kTicks; ++i) {
      const double share = static_cast<double>(i) / kTicks;
      const double y = ys_.At(share);
      absl::StrAppendFormat(&canvas_.svg(), "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#ddd\"/>", kLeft,
                            Y(y), kWidth - kRight);
      canvas_.Text(kLeft - 6.0, Y(y) + 4.0, "end", absl::StrFormat("%.3g", y));
      const double x = xs_.At(share);
      canvas_.Text(kLeft + (kWidth - kLeft - kRight) * share, foot + 16.0, "middle",
                   absl::StrFormat("%.4g", chart_.log_x ? std::exp2(x) : x));
    }
    if (!chart_.x_label.empty()) {
      canvas_.Text((kLeft + kWidth - kRight) / 2.0, foot + 32.0, "middle", chart_.x_label);
    }
    if (!chart_.y_label.empty()) {
      canvas_.Text(kWidth - kRight, canvas_.top() - 8.0, "end", chart_.y_label);
    }
  }

  void Line(const FigureLine& line, const std::vector<FigurePoint>& points, size_t index) {
    const char* colour = kColours[index % std::size(kColours)];
    std::string path;
    for (const FigurePoint& point : points) {
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", X(point.x), Y(point.y));
      if (point.low < point.high) {
        absl::StrAppendFormat(&canvas_.svg(), "<path d=\"M%.1f %.1fV%.1f\" stroke=\"%s\"/>\n",
                              X(point.x), Y(point.low), Y(point.high), colour);
      }
      if (line.dots) {
        absl::StrAppendFormat(&canvas_.svg(),
                              "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", X(point.x),
                              Y(point.y), colour);
      }
    }
    absl::StrAppendFormat(&canvas_.svg(), "<path d=\"%s\" fill=\"none\" stroke=\"%s\"%s/>\n", path,
                          colour, line.dots ? " stroke-dasharray=\"3 3\"" : "");
    canvas_.Text(kWidth - kRight + 10.0, canvas_.top() + 14.0 + 18.0 * static_cast<double>(index),
                 "start", line.name, colour);
  }

  const LineChart& chart_;
  Canvas canvas_;
  Range xs_;
  Range ys_;
  std::vector<std::vector<FigurePoint>> lines_;
};

size_t Columns(const HeatMap& map) {
  size_t columns = 1;
  for (const auto& row : map.values) columns = std::max(columns, row.size());
  return columns;
}

double Square(const HeatMap& map) {
  return std::min(kLargestSquare, (kWidth - kLeft - kRight) / static_cast<double>(Columns(map)));
}

void DrawHeatMap(const HeatMap& map, Canvas canvas) {
  canvas.Title(map.title);
  const double side = Square(map);
  for (size_t row = 0; row < map.values.size(); ++row) {
    const double y = canvas.top() + side * static_cast<double>(row);
    if (row % std::max<size_t>(1, static_cast<size_t>(12.0 / side) + 1) == 0 || side >= 12.0) {
      canvas.Text(kLeft - 6.0, y + side / 2.0 + 4.0, "end", absl::StrCat(row));
    }
    for (size_t column = 0; column < map.values[row].size(); ++column) {
      const double value = map.values[row][column];
      if (!std::isfinite(value)) continue;
      const double share = std::clamp((value - map.low) / (map.high - map.low), 0.0, 1.0);
      const int light = 255 - static_cast<int>(std::lround(225.0 * share));
      absl::StrAppendFormat(&canvas.svg(),
                            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                            "fill=\"rgb(%d,%d,255)\"><title>%.4g</title></rect>\n",
                            kLeft + side * static_cast<double>(column), y, side - 0.5, side - 0.5,
                            light, light, value);
    }
  }
  const double foot = canvas.top() + side * static_cast<double>(map.values.size());
  canvas.Text(kLeft, foot + 16.0, "start",
              absl::StrFormat("%s across, %s down; %.3g light, %.3g dark", map.x_label, map.y_label,
                              map.low, map.high));
}

double Height(const Figure& figure) {
  double inside = kChartHeight;
  if (const auto* map = std::get_if<HeatMap>(&figure)) {
    inside = Square(*map) * static_cast<double>(map->values.size());
  }
  return kTitleHeight + inside + kFootHeight + kGap;
}

}  // namespace

std::string SvgOf(std::span<const Figure> figures, const std::string& title) {
  double top = title.empty() ? 10.0 : 34.0;
  double height = top;
  for (const Figure& figure : figures) height += Height(figure);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, height);
  if (!title.empty()) {
    absl::StrAppendFormat(&svg, "<text x=\"%.0f\" y=\"20\" font-size=\"14\">%s</text>\n", kLeft,
                          Escaped(title));
  }
  for (const Figure& figure : figures) {
    if (const auto* chart = std::get_if<LineChart>(&figure)) {
      ChartDrawing(*chart, Canvas(top, svg)).Draw();
    } else {
      DrawHeatMap(std::get<HeatMap>(figure), Canvas(top, svg));
    }
    top += Height(figure);
  }
  return svg + "</svg>\n";
}

}  // namespace eta
