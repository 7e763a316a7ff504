#include "service/server_options.h"

#include <arpa/inet.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "calibration/calibrator.h"
#include "calibration/profile_store.h"
#include "service/call_tenant.h"

namespace eta {
namespace {

// The host part of host:port or [host]:port.
std::optional<std::string> HostOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) return std::nullopt;
  const std::string port = address.substr(colon + 1);
  if (port.find_first_not_of("0123456789") != std::string::npos || port.size() > 5 ||
      std::stoi(port) > 65535) {
    return std::nullopt;
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[') {
    if (host.back() != ']') return std::nullopt;
    return host.substr(1, host.size() - 2);
  }
  if (host.find(':') != std::string::npos) return std::nullopt;
  return host;
}

bool IsLoopback(const std::string& host) {
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return host == "localhost" || host == "::1";
}

}  // namespace

absl::Status CheckCallOptions(const ServerOptions& options) {
  if (!options.default_profile.empty() &&
      !ParseProfileReference("default_profile", options.default_profile).ok()) {
    return absl::InvalidArgumentError(
        "--default_profile: must be a profile's name, name@version or name@alias");
  }
  if (options.max_calibrations < 1) {
    return absl::InvalidArgumentError("--max_calibrations: must be at least 1");
  }
  if (options.max_tenant_calibrations < 0 ||
      options.max_tenant_calibrations > options.max_calibrations) {
    return absl::InvalidArgumentError("--max_tenant_calibrations: must be 0 to --max_calibrations");
  }
  if (options.max_calibration_tokens < 1 ||
      options.max_calibration_tokens > kMaxCalibrationTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_calibration_tokens: must be 1 to ", kMaxCalibrationTokens));
  }
  if (!options.admin_tenants.empty() && options.tenant_header.empty()) {
    return absl::InvalidArgumentError(
        "--admin_tenants: needs --tenant_header; without it calls name no tenant and all may see "
        "everything");
  }
  for (const std::string& tenant : options.admin_tenants) {
    if (!Tenant::Parse(tenant).ok()) {
      return absl::InvalidArgumentError(
          "--admin_tenants: must be names of 1 to 255 printable ASCII characters without spaces");
    }
  }
  if (options.self_probe_timeout < std::chrono::milliseconds(100)) {
    return absl::InvalidArgumentError("--self_probe_timeout: must be at least 100ms");
  }
  return CheckTenantHeader(options.tenant_header);
}

absl::Status CheckListenAddress(const ServerOptions& options) {
  if (options.listen.rfind("unix:", 0) == 0) {
    if (options.listen.size() > 5) return absl::OkStatus();
    return absl::InvalidArgumentError("--listen: unix: needs a path");
  }
  const std::optional<std::string> host = HostOf(options.listen);
  if (!host) {
    return absl::InvalidArgumentError(
        "--listen: must be host:port, [IPv6]:port or unix:path, the port 0 to 65535");
  }
  if (!IsLoopback(*host) && !options.allow_unauthenticated_network) {
    return absl::InvalidArgumentError(
        "--listen: other hosts could reach this address, and calls are neither authenticated nor "
        "encrypted; put a proxy that does both in front and set --allow_unauthenticated_network");
  }
  return absl::OkStatus();
}

absl::Status CheckMetricsAddress(const ServerOptions& options) {
  if (options.metrics_listen.empty()) return absl::OkStatus();
  const std::optional<std::string> host = HostOf(options.metrics_listen);
  if (!host || host->find(':') != std::string::npos) {  // Debian builds civetweb without IPv6
    return absl::InvalidArgumentError(
        "--metrics_listen: must be host:port, not of IPv6, the port 0 to 65535");
  }
  if (!IsLoopback(*host) && !options.allow_unauthenticated_network) {
    return absl::InvalidArgumentError(
        "--metrics_listen: other hosts could reach this address, and whoever does may read the "
        "metrics; let only Prometheus reach it and set --allow_unauthenticated_network");
  }
  return absl::OkStatus();
}

}  // namespace eta
