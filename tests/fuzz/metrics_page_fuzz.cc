// Ends of any calls as what metrics show: whatever clients called their tenants and profiles, the
// page keeps to the text format, no series comes twice, and their number stays bounded.
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "service/telemetry/page/metric_catalogue.h"
#include "service/telemetry/page/metrics_page.h"
#include "service/telemetry/telemetry.h"
#include "tests/testing/fuzz/input_reader.h"
#include "tests/testing/fuzz/page_lines.h"

namespace {

using eta::fuzz::Require;

constexpr int kMaxCalls = 64;
constexpr int kLabelLimit = 3;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  eta::fuzz::InputReader reader(data, size);
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
  std::set<std::pair<std::string, eta::fuzz::Labels>> series;
  for (const eta::fuzz::Line& line : eta::fuzz::ParsePage(page)) {
    Require(series.insert({line.name, line.labels}).second);
    for (const auto& [name, value] : line.labels) {
      if (name == "tenant") tenants.insert(value);
      if (name == "profile") profiles.insert(value);
    }
  }
  Require(tenants.size() <= kLabelLimit + 2 && profiles.size() <= kLabelLimit + 2);
  return 0;
}
