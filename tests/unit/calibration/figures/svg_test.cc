// Figures as SVG.
#include "calibration/figures/svg.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

int64_t Count(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Svg, DrawsLinesDotsAndIntervals) {
  const Figure figures[] = {
      LineChart{.title = "loss & more",
                .x_label = "union",
                .y_label = "nats",
                .lines = {{.name = "<one>",
                           .points = {{.x = 0.1, .y = 2.0, .low = 1.5, .high = 2.5},
                                      {.x = 0.2, .y = 1.0},
                                      {.x = 0.3, .y = std::nan("")}},
                           .dots = true},
                          {.name = "nothing", .points = {}}}}};
  const std::string svg = SvgOf(figures, "a title");
  EXPECT_THAT(svg, AllOf(HasSubstr("a title"), HasSubstr("loss &amp; more"),
                         HasSubstr("&lt;one&gt;"), HasSubstr("union"), HasSubstr("</svg>"),
                         Not(HasSubstr("nothing")), Not(HasSubstr("nan"))));
  EXPECT_EQ(Count(svg, "<circle"), 2);
}

TEST(Svg, ALogarithmicAbscissaSpacesPowersEqually) {
  const Figure figures[] = {LineChart{
      .title = "by length",
      .lines = {{.name = "hits",
                 .points = {{.x = 2048, .y = 1}, {.x = 4096, .y = 0.5}, {.x = 8192, .y = 0}},
                 .dots = true}},
      .log_x = true}};
  const std::string svg = SvgOf(figures, "");
  std::vector<double> places;
  for (size_t at = svg.find("cx=\""); at != std::string::npos; at = svg.find("cx=\"", at + 1)) {
    places.push_back(std::stod(svg.substr(at + 4)));
  }
  ASSERT_EQ(places.size(), 3u);
  EXPECT_NEAR(places[1] - places[0], places[2] - places[1], 0.2);
  EXPECT_THAT(svg, AllOf(HasSubstr(">2048<"), HasSubstr(">8192<")));
}

TEST(Svg, AHeatMapHasASquarePerValueThatIsOne) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const Figure figures[] = {HeatMap{.title = "density",
                                    .x_label = "heads",
                                    .y_label = "layers",
                                    .values = {{0.0, 0.5, 1.0}, {2.0, none, 0.25}}}};
  const std::string svg = SvgOf(figures, "map");
  EXPECT_EQ(Count(svg, "<title>"), 5);
  EXPECT_THAT(svg, AllOf(HasSubstr("rgb(255,255,255)"), HasSubstr("rgb(30,30,255)"),
                         HasSubstr("heads across, layers down")));
}

TEST(Svg, NothingIsAPictureToo) {
  EXPECT_THAT(SvgOf({}, "empty"), AllOf(HasSubstr("<svg"), HasSubstr("</svg>")));
  const Figure figures[] = {LineChart{.title = "no lines", .lines = {}},
                            HeatMap{.title = "no map"}};
  EXPECT_THAT(SvgOf(figures, ""), AllOf(HasSubstr("no lines"), HasSubstr("no map")));
}

}  // namespace
}  // namespace eta
