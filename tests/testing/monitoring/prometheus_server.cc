#include "tests/testing/monitoring/prometheus_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/testing/net/http_get.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr char kPrometheus[] = "/usr/bin/prometheus";

// A port that was free just now. Prometheus does not tell which port it took, so it is given one.
int FreePort() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound =
      bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(listener);
  return bound ? ntohs(address.sin_port) : 0;
}

std::string Configuration(const std::string& target) {
  const std::string rules = ETA_SOURCE_DIR "/deploy/prometheus";
  return absl::StrCat(
      "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
      "rule_files: [",
      rules, "/rules.yml, ", rules,
      "/alerts.yml]\n"
      "scrape_configs:\n"
      "  - job_name: eta-server\n"
      "    static_configs: [{targets: ['",
      target,
      "']}]\n"
      "  - job_name: eta-server-v3\n"
      "    static_configs: [{targets: ['",
      target,
      "']}]\n"
      "    metric_relabel_configs:\n"
      "      - {source_labels: [le], regex: '([0-9]+)', target_label: le, replacement: '$1.0'}\n");
}

bool Await(const std::function<bool()>& condition) {
  for (const auto end = steady_clock::now() + seconds(60); steady_clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(50));
  }
  return false;
}

}  // namespace

PrometheusServer::PrometheusServer(const std::string& target)
    : port_(FreePort()),
      process_(
          kPrometheus,
          {absl::StrCat("--config.file=", folder_.Write("prometheus.yml", Configuration(target))),
           absl::StrCat("--storage.tsdb.path=", folder_.path(), "/data"),
           absl::StrCat("--web.listen-address=127.0.0.1:", port_), "--log.level=warn"}) {}

bool PrometheusServer::AwaitReady() {
  return Await([&] { return !process_.Running() || HttpGet(port_, "/-/ready").status == 200; }) &&
         process_.Running();
}

nlohmann::json PrometheusServer::Get(const std::string& path) const {
  const nlohmann::json answer =
      nlohmann::json::parse(HttpGet(port_, path).body, nullptr, /*allow_exceptions=*/false);
  if (answer.is_discarded()) return {{"error", "no answer from Prometheus"}};
  if (answer.value("status", "") != "success") return {{"error", answer.value("error", "?")}};
  return answer["data"];
}

nlohmann::json PrometheusServer::Query(const std::string& expression) const {
  const nlohmann::json data = Get("/api/v1/query?query=" + UrlEscaped(expression));
  return data.contains("error") ? data : data["result"];
}

nlohmann::json PrometheusServer::Rules() const {
  nlohmann::json rules = nlohmann::json::array();
  const nlohmann::json data = Get("/api/v1/rules");
  for (const auto& group : data.value("groups", nlohmann::json::array())) {
    for (const auto& rule : group["rules"]) rules.push_back(rule);
  }
  return rules;
}

bool PrometheusServer::AwaitScrapes(int count) const {
  const auto scrapes = [&] {
    const nlohmann::json result = Query("min(count_over_time(up[1h])) and count(up) == 2");
    return result.is_array() && !result.empty()
               ? std::stoi(result[0]["value"][1].get<std::string>())
               : 0;
  };
  const int before = scrapes();
  // One scrape more than asked for: the next one to end may have begun before now.
  return Await([&] { return scrapes() > before + count; });
}

}  // namespace eta::testing
