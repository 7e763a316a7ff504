// lint: fuzz-covered
#include "service/options/server_options.h"

#include <arpa/inet.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "calibration/calibrate/calibrator.h"
#include "calibration/profiles/profile_store.h"
#include "engine/base/status_macros.h"
#include "engine/base/tenant.h"
#include "service/options/vllm_listen.h"

namespace eta {
namespace {

// The host of host:port or [host]:port.
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

// Of an address that has a host.
int PortOf(const std::string& address) {
  return std::stoi(address.substr(address.rfind(':') + 1));
}

// A character of a name, or of an address, as in [fe80::1%eth0].
bool IsOfHost(char c) {
  return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' || c == ':' || c == '%';
}

bool IsLoopback(const std::string& host) {
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return host == "localhost" || host == "::1";
}

bool Authenticates(const ServerOptions& options) {
  return !options.identity.empty() || !options.tls_client_ca.empty();
}

constexpr int kOwnersSocket = 0600;
constexpr std::string_view kUnixScheme = "unix:";
constexpr std::string_view kTcpScheme = "tcp://";
constexpr std::string_view kHttpScheme = "http://";
constexpr std::string_view kHttpsScheme = "https://";

bool IsUnixSocket(const std::string& address) {
  return address.starts_with(kUnixScheme);
}

absl::Status CheckTenantHeader(const std::string& header) {
  const bool allowed = std::all_of(header.begin(), header.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '_' || c == '.';
  });
  if (allowed && header != "authorization" && !absl::EndsWith(header, "-bin") &&
      !absl::StartsWith(header, "grpc-")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--tenant_header: must be a metadata key of a-z 0-9 - _ . that does not end with -bin nor "
      "begin with grpc-, and not authorization");
}

// Whether other hosts could reach what gateways reach, by an address that can be read.
bool OpensGateways(const ServerOptions& options) {
  return std::any_of(options.vllm_listen.begin(), options.vllm_listen.end(), [](const auto& text) {
    const auto listen = ParseVllmListen(text);
    return listen.ok() && !IsLocalAddress(listen->address);
  });
}

// Checks flags of TLS and identity that need one another, or that make one another idle.
absl::Status CheckSecurity(const ServerOptions& options) {
  const auto wrong = [](const char* text) { return absl::InvalidArgumentError(text); };
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return wrong("--tls_cert, --tls_key: need one another");
  }
  if (!options.tls_client_ca.empty() && options.tls_cert.empty()) {
    return wrong("--tls_client_ca: needs --tls_cert and --tls_key");
  }
  if (options.allow_plaintext_network && !options.tls_cert.empty()) {
    return wrong("--allow_plaintext_network: calls are encrypted (--tls_cert)");
  }
  const bool idle = !options.tls_client_ca.empty() || !OpensGateways(options);
  if (options.allow_unauthenticated_network && Authenticates(options) && idle) {
    return wrong(
        "--allow_unauthenticated_network: calls are authenticated (--identity, --tls_client_ca); "
        "for metrics alone there is --allow_network_metrics");
  }
  if (options.reflection && Authenticates(options)) {
    return wrong(
        "--reflection: anybody may list the API without a credential, so not together with "
        "--identity or --tls_client_ca");
  }
  if (!options.tenant_header.empty() && !options.tls_client_ca.empty() &&
      options.identity.empty()) {
    return wrong(
        "--tenant_header: with --tls_client_ca it needs --identity, which says whose certificate "
        "is a proxy's; else whoever has a certificate could name any tenant");
  }
  return absl::OkStatus();
}

// Checks for flags that open up or limit something that the address does not have.
absl::Status CheckIdleAtAddress(const ServerOptions& options) {
  const auto wrong = [](const char* text) { return absl::InvalidArgumentError(text); };
  if (IsLocalAddress(options.listen) && !OpensGateways(options)) {
    if (options.allow_unauthenticated_network) {
      return wrong("--allow_unauthenticated_network: only this host can reach --listen");
    }
    if (options.allow_plaintext_network) {
      return wrong("--allow_plaintext_network: only this host can reach --listen");
    }
  }
  if (IsUnixSocket(options.listen)) {
    if (options.max_connections_per_peer > 0) {
      return wrong(
          "--max_connections_per_peer: whoever connects to a Unix socket (--listen) has no address "
          "to count by");
    }
  } else if (options.socket_mode != kOwnersSocket) {
    return wrong("--socket_mode: --listen is no Unix socket");
  }
  return absl::OkStatus();
}

}  // namespace

bool IsLocalAddress(const std::string& address) {
  if (IsUnixSocket(address)) return true;
  const std::optional<std::string> host = HostOf(address);
  return host && IsLoopback(*host);
}

absl::Status CheckCallOptions(const ServerOptions& options) {
  if (!options.default_profile.empty() &&
      !ParseProfileReference("default_profile", options.default_profile).ok()) {
    return absl::InvalidArgumentError(
        "--default_profile: must be a profile's name, name@version or name@alias");
  }
  if (options.max_calibrations < 1) {
    return absl::InvalidArgumentError("--max_calibrations: must be at least 1");
  }
  if (options.tokenizer_threads < 0) {
    return absl::InvalidArgumentError("--tokenizer_threads: must not be negative");
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
  if (options.max_connections < 0 || options.max_connections_per_peer < 0) {
    return absl::InvalidArgumentError(
        "--max_connections, --max_connections_per_peer: must not be negative");
  }
  RETURN_IF_ERROR(CheckSecurity(options));
  return CheckTenantHeader(options.tenant_header);
}

absl::Status CheckListenAddress(const ServerOptions& options) {
  if (IsUnixSocket(options.listen)) {
    if (options.listen.size() > kUnixScheme.size()) return CheckIdleAtAddress(options);
    return absl::InvalidArgumentError("--listen: unix: needs a path");
  }
  const std::optional<std::string> host = HostOf(options.listen);
  if (!host) {
    return absl::InvalidArgumentError(
        "--listen: must be host:port, [IPv6]:port or unix:path, the port 0 to 65535");
  }
  RETURN_IF_ERROR(CheckIdleAtAddress(options));
  if (IsLoopback(*host)) return absl::OkStatus();
  const bool known = Authenticates(options) || options.allow_unauthenticated_network;
  const bool hidden = !options.tls_cert.empty() || options.allow_plaintext_network;
  if (known && hidden) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--listen: other hosts could reach this address, and ",
      known ? ""
            : "calls are not authenticated (--identity, --tls_client_ca; or, where a proxy in "
              "front does it, --allow_unauthenticated_network)",
      known || hidden ? "" : " and ",
      hidden ? "" : "calls are not encrypted (--tls_cert; or likewise --allow_plaintext_network)"));
}

absl::Status CheckHealthAddress(const ServerOptions& options) {
  const std::string& address = options.health_listen;
  if (address.empty() || HostOf(address) ||
      (IsUnixSocket(address) && address.size() > kUnixScheme.size())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--health_listen: must be host:port, [IPv6]:port or unix:path, the port 0 to 65535");
}

absl::Status CheckVllmListen(const ServerOptions& options) {
  static const ServerOptions defaults;
  const auto wrong = [](const char* text) { return absl::InvalidArgumentError(text); };
  if (options.vllm_listen.empty() &&
      (options.vllm_route || options.vllm_tenant != defaults.vllm_tenant ||
       options.vllm_max_tokens != defaults.vllm_max_tokens)) {
    return wrong("--vllm_tenant, --vllm_route, --vllm_max_tokens: need --vllm_listen");
  }
  if (!Tenant::Parse(options.vllm_tenant).ok()) {
    return wrong("--vllm_tenant: must be 1 to 255 printable ASCII characters without spaces");
  }
  if (options.vllm_route && options.identity.empty()) {
    return wrong("--vllm_route: without --identity everybody has all roles");
  }
  if (options.vllm_max_tokens < 1) return wrong("--vllm_max_tokens: must be at least 1");
  const bool known = !options.tls_client_ca.empty() || options.allow_unauthenticated_network;
  const bool hidden = !options.tls_cert.empty() || options.allow_plaintext_network;
  for (const std::string& text : options.vllm_listen) {
    ASSIGN_OR_RETURN(const auto listen, ParseVllmListen(text));
    const std::string& address = listen.address;
    if (IsUnixSocket(address) ? address.size() == kUnixScheme.size() : !HostOf(address)) {
      return wrong(
          "--vllm_listen: must be host:port, [IPv6]:port or unix:path, the port 0 to 65535; =NAME "
          "and :ATTENTION may follow");
    }
    if (IsLocalAddress(address) || (known && hidden)) continue;
    return wrong(
        "--vllm_listen: other hosts could reach this address, where calls show no credential; it "
        "needs --tls_cert and --tls_client_ca, or --allow_unauthenticated_network and "
        "--allow_plaintext_network");
  }
  return absl::OkStatus();
}

absl::Status CheckMetricsAddress(const ServerOptions& options) {
  if (options.metrics_listen.empty()) {
    if (!options.allow_network_metrics) return absl::OkStatus();
    return absl::InvalidArgumentError("--allow_network_metrics: needs --metrics_listen");
  }
  const std::optional<std::string> host = HostOf(options.metrics_listen);
  if (!host || host->find(':') != std::string::npos) {  // Debian builds civetweb without IPv6
    return absl::InvalidArgumentError(
        "--metrics_listen: must be host:port, not of IPv6, the port 0 to 65535");
  }
  if (IsLoopback(*host) && options.allow_network_metrics) {
    return absl::InvalidArgumentError(
        "--allow_network_metrics: only this host can reach --metrics_listen");
  }
  if (!IsLoopback(*host) && !options.allow_network_metrics) {
    return absl::InvalidArgumentError(
        "--metrics_listen: other hosts could reach this address, and whoever does may read the "
        "metrics; let only Prometheus reach it and set --allow_network_metrics");
  }
  return absl::OkStatus();
}

absl::Status CheckKvEventAddresses(const KvEventOptions& options) {
  if (options.publish.empty()) {
    if (options.replay.empty() && options.topic.empty() && !options.allow_network) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "--kv_events_replay, --kv_events_topic, --allow_network_kv_events: need --kv_events");
  }
  bool local = true;
  for (const auto& [flag, address] : {std::pair("--kv_events", options.publish),
                                      std::pair("--kv_events_replay", options.replay)}) {
    if (address.empty()) continue;
    const bool tcp = address.starts_with(kTcpScheme);
    const std::optional<std::string> host =
        tcp ? HostOf(address.substr(kTcpScheme.size())) : std::nullopt;
    if (!host) {
      return absl::InvalidArgumentError(absl::StrCat(
          flag,
          ": must be tcp://host:port, tcp://[IPv6]:port or tcp://*:port, the port 0 to "
          "65535"));
    }
    if (IsLoopback(*host)) continue;
    local = false;
    if (!options.allow_network) {
      return absl::InvalidArgumentError(absl::StrCat(
          flag,
          ": other hosts could reach this address, and whoever does may read the prompts' "
          "tokens, in plaintext; let only routers reach it and set "
          "--allow_network_kv_events"));
    }
  }
  if (local && options.allow_network) {
    return absl::InvalidArgumentError(
        "--allow_network_kv_events: only this host can reach --kv_events");
  }
  return absl::OkStatus();
}

bool OtlpByTls(const ServerOptions& options) {
  return options.otlp_endpoint.starts_with(kHttpsScheme);
}

std::string OtlpAddress(const ServerOptions& options) {
  const std::string_view scheme = OtlpByTls(options) ? kHttpsScheme : kHttpScheme;
  return options.otlp_endpoint.substr(std::min(scheme.size(), options.otlp_endpoint.size()));
}

absl::Status CheckOtlp(const ServerOptions& options) {
  if (!(options.otlp_sampling >= 0.0 && options.otlp_sampling <= 1.0)) {
    return absl::InvalidArgumentError("--otlp_sampling: must be a number from 0 to 1");
  }
  if (options.otlp_endpoint.empty()) {
    if (options.otlp_sampling == 1.0) return absl::OkStatus();
    return absl::InvalidArgumentError("--otlp_sampling: needs --otlp_endpoint");
  }
  const bool has_scheme = OtlpByTls(options) || options.otlp_endpoint.starts_with(kHttpScheme);
  const std::string address = OtlpAddress(options);
  const std::optional<std::string> host = HostOf(address);
  if (has_scheme && host && !host->empty() && std::all_of(host->begin(), host->end(), IsOfHost) &&
      PortOf(address) > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--otlp_endpoint: must be http://host:port (plaintext) or https://host:port (TLS), the port "
      "1 to 65535, usually 4317, without a path: spans go by OTLP over gRPC");
}

absl::Status CheckOptions(const ServerOptions& options, const Limits& limits) {
  RETURN_IF_ERROR(CheckListenAddress(options));
  RETURN_IF_ERROR(CheckMetricsAddress(options));
  RETURN_IF_ERROR(CheckHealthAddress(options));
  RETURN_IF_ERROR(CheckVllmListen(options));
  RETURN_IF_ERROR(CheckKvEventAddresses(options.kv_events));
  RETURN_IF_ERROR(CheckOtlp(options));
  RETURN_IF_ERROR(CheckCallOptions(options));
  if (options.stall_timeout > limits.max_congestion) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--stall_timeout: must be longer than --slow_reader_timeout, since a request that waits for "
      "its reader takes no steps");
}

}  // namespace eta
