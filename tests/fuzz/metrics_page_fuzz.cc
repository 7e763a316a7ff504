// Any texts and numbers as what metrics show: the page reads back as what was put in, line by line,
// whatever clients called their tenants and profiles, and the number of series stays bounded.
//
// Input: samples of labels and numbers for a page of their own; then, after a byte 255, ends of
// calls that the telemetry counts.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "service/telemetry/metric_catalogue.h"
#include "service/telemetry/metrics_page.h"
#include "service/telemetry/page_writer.h"
#include "service/telemetry/telemetry.h"
#include "tests/fuzz/input_reader.h"

namespace {

using eta::fuzz::InputReader;
using eta::fuzz::Require;
using Labels = std::vector<std::pair<std::string, std::string>>;

constexpr int kMaxCalls = 64;
constexpr int kLabelLimit = 3;

struct Line {
  std::string name;
  Labels labels;
  double value = 0.0;
};

bool IsName(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  });
}

// As the specification of the text format says; ends the program where a line does not keep to it.
Line ParseLine(std::string_view text) {
  Line line;
  const size_t end = text.find_first_of("{ ");
  Require(end != std::string_view::npos);
  line.name = std::string(text.substr(0, end));
  Require(IsName(line.name));
  text.remove_prefix(end);
  if (text.front() == '{') {
    do {
      text.remove_prefix(1);
      const size_t equals = text.find("=\"");
      Require(equals != std::string_view::npos && IsName(text.substr(0, equals)));
      std::string name(text.substr(0, equals));
      text.remove_prefix(equals + 2);
      std::string value;
      while (!text.empty() && text.front() != '"') {
        if (text.front() == '\\') {
          text.remove_prefix(1);
          Require(!text.empty() &&
                  (text.front() == '\\' || text.front() == '"' || text.front() == 'n'));
          value += text.front() == 'n' ? '\n' : text.front();
        } else {
          value += text.front();
        }
        text.remove_prefix(1);
      }
      Require(text.size() >= 2);
      text.remove_prefix(1);
      line.labels.emplace_back(std::move(name), std::move(value));
    } while (text.front() == ',');
    Require(text.front() == '}');
    text.remove_prefix(1);
  }
  Require(!text.empty() && text.front() == ' ');
  text.remove_prefix(1);
  Require(absl::SimpleAtod(absl::string_view(text.data(), text.size()), &line.value));
  return line;
}

std::vector<Line> ParsePage(std::string_view page) {
  std::vector<Line> lines;
  while (!page.empty()) {
    const size_t end = page.find('\n');
    Require(end != std::string_view::npos);
    const std::string_view line = page.substr(0, end);
    page.remove_prefix(end + 1);
    if (!line.starts_with("# HELP ") && !line.starts_with("# TYPE ")) {
      lines.push_back(ParseLine(line));
    }
  }
  return lines;
}

bool Same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

void RoundTrip(InputReader& reader) {
  std::string page;
  const std::string model(reader.Text());
  eta::PageWriter writer(page, model);
  writer.Family("eta_requests_running");
  std::vector<Line> want;
  for (uint8_t count = reader.Byte(); count != 255 && !reader.empty(); count = reader.Byte()) {
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
  const std::vector<Line> got = ParsePage(page);
  Require(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    Require(got[i].name == want[i].name && got[i].labels == want[i].labels);
    Require(Same(got[i].value, want[i].value));
  }
}

void CountCalls(InputReader& reader) {
  eta::Telemetry telemetry({.profiles = {}, .tenants = {}, .label_limit = kLabelLimit});
  eta::ServerFigures server{};
  server.info = eta::EngineInfo{};
  server.info.model_name = std::string(reader.Text());
  telemetry.SetModel(server.info, std::chrono::seconds(1));
  server.store.emplace();
  for (int i = 0; i < kMaxCalls && !reader.empty(); ++i) {
    eta::CallRecord record{.method = "Generate"};
    record.tenant = std::string(reader.Text());
    record.profile = std::string(reader.Text());
    const uint8_t flags = reader.Byte();
    record.submitted = (flags & 1) != 0;
    record.resolved = (flags & 2) != 0;
    const auto code = static_cast<absl::StatusCode>(flags >> 2 & 15);
    record.status = absl::Status(code, "m");
    record.reason = std::string(reader.Text());
    record.duration = std::chrono::nanoseconds(reader.Raw<uint32_t>());
    telemetry.OnCallEnd(record);
    server.store->profiles.push_back({.tenant = telemetry.TenantLabel(record.tenant),
                                      .name = telemetry.ProfileLabel(record.profile),
                                      .version = i + 1,
                                      .digest = std::string(reader.Text())});
  }
  std::string page;
  eta::WritePage(telemetry.Figures(), &server, {}, page);
  std::set<std::string> tenants;
  std::set<std::string> profiles;
  std::set<std::pair<std::string, Labels>> series;
  for (const Line& line : ParsePage(page)) {
    Require(series.insert({line.name, line.labels}).second);
    for (const auto& [name, value] : line.labels) {
      if (name == "tenant") tenants.insert(value);
      if (name == "profile") profiles.insert(value);
    }
  }
  Require(tenants.size() <= kLabelLimit + 2 && profiles.size() <= kLabelLimit + 2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  InputReader reader(data, size);
  RoundTrip(reader);
  if (!reader.empty()) CountCalls(reader);
  return 0;
}
