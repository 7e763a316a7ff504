// Figures that evaluations and training runs draw: charts of lines, and heat maps.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace eta {

struct FigurePoint {
  double x = 0.0;
  double y = 0.0;
  // What an interval around y spans; equal: none is drawn.
  double low = 0.0;
  double high = 0.0;
};

struct FigureLine {
  std::string name;
  std::vector<FigurePoint> points;  // ascending in x
  bool dots = false;                // a dot at every point, joined by a dashed line
};

struct LineChart {
  std::string title;
  std::string x_label = {};  // empty: none
  std::string y_label = {};
  std::vector<FigureLine> lines;
  bool log_x = false;      // by powers; every x > 0
  bool from_zero = false;  // the ordinate spans 0..1 at least
};

// One square per cell, the darker the larger its value.
struct HeatMap {
  std::string title;
  std::string x_label = {};
  std::string y_label = {};
  std::vector<std::vector<double>> values;  // [rows][columns], the first row on top
  double low = 0.0;                         // values of the lightest and the darkest square
  double high = 1.0;
};

using Figure = std::variant<LineChart, HeatMap>;

}  // namespace eta
