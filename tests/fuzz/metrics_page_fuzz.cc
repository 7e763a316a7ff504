// Ends of any calls as what metrics show: whatever clients called their tenants and profiles, the
// page keeps to the text format, no series comes twice, and their number stays bounded.
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "prometheus/text_serializer.h"
#include "service/stats/page/metrics_page.h"
#include "service/telemetry/metric_catalogue.h"
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
  eta::Clock::time_point now{std::chrono::hours(1)};
  eta::ServerStatus status;
  status.state = eta::ServerState::kServing;
  status.info.model_name = std::string(reader.Text());
  eta::TelemetryOptions options{.profiles = {}, .tenants = {}, .label_limit = kLabelLimit};
  // As the flags may have it.
  if (status.info.model_name == "listed") options.profiles = {"legal", "none"};
  if (status.info.model_name == "unlabelled") options.label_limit = 0;
  eta::Telemetry telemetry(options, [&now] { return now; });
  telemetry.SetModel(status.info, std::chrono::seconds(1));
  status.store.emplace();
  for (int i = 0; i < kMaxCalls && !reader.empty(); ++i) {
    eta::CallRecord record{.method = "Generate"};
    record.tenant = std::string(reader.Text());
    record.profile = std::string(reader.Text());
    const uint8_t flags = reader.Byte();
    now += (flags >> 6) * std::chrono::minutes(6);  // twice: labels fold
    record.submitted = (flags & 1) != 0;
    record.resolved = (flags & 2) != 0;
    const auto code = static_cast<absl::StatusCode>(flags >> 2 & 15);
    record.status = absl::Status(code, "m");
    record.reason = std::string(reader.Text());
    record.duration = std::chrono::nanoseconds(reader.Raw<uint32_t>());
    telemetry.OnCallEnd(record);
    const auto tenant = eta::Tenant::Parse(record.tenant);
    status.profiles.push_back({.tenant = tenant.ok() ? *tenant : eta::Tenant::Parse("t").value(),
                               .name = record.profile,
                               .version = i + 1,
                               .checksum = std::string(reader.Text())});
  }
  status.telemetry = telemetry.Snapshot();
  const std::string page =
      prometheus::TextSerializer().Serialize(eta::MetricsPage(status, telemetry));
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
