// Any texts and numbers as labels and values: the page reads back as what was put in, line by line.
//
// Input: a model's name, then samples, each with the number of its labels, these, and its value.
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "service/telemetry/page/page_writer.h"
#include "tests/testing/fuzz/input_reader.h"
#include "tests/testing/fuzz/page_lines.h"

namespace {

using eta::fuzz::Line;
using eta::fuzz::Require;

bool Same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  eta::fuzz::InputReader reader(data, size);
  std::string page;
  const std::string model(reader.Text());
  eta::PageWriter writer(page, model);
  writer.Family("eta_requests_running");
  std::vector<Line> want;
  for (uint8_t count = reader.Byte(); !reader.empty(); count = reader.Byte()) {
    eta::LabelText text;
    Line line{.name = "eta_requests_running"};
    line.labels.emplace_back("model", model);
    for (int i = 0; i < count % 4; ++i) {
      const std::string name = "l" + std::to_string(i);
      const std::string value(reader.Text());
      text.Add(name, value);
      line.labels.emplace_back(name, value);
    }
    line.value = reader.Raw<double>();
    writer.Sample(text, line.value);
    if (!model.empty()) want.push_back(std::move(line));
  }
  const std::vector<Line> got = eta::fuzz::ParsePage(page);
  Require(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    Require(got[i].name == want[i].name && got[i].labels == want[i].labels);
    Require(Same(got[i].value, want[i].value));
  }
  return 0;
}
