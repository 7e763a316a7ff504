// Any texts as the addresses and names that flags of the server take: what is let through without
// authentication and encryption can only be reached from this host. Input: a byte of flags, with
// bit 4 of them numbers, then lines, with bit 7 a collector's among them.
#include <arpa/inet.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "calibration/calibrate/calibrator.h"
#include "engine/request/limits.h"
#include "service/options/server_options.h"
#include "service/options/vllm_listen.h"
#include "tests/testing/fuzz/input_reader.h"

namespace {

using eta::fuzz::Require;

// By the C library: a loopback address, or the name that stands for one.
bool IsLoopback(std::string host) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6) != 0;
  return host == "localhost";
}

bool HasLoopback(const std::string& address) {
  return IsLoopback(address.substr(0, address.rfind(':')));
}

void CheckTcp(const std::string& address, bool local_only) {
  const size_t colon = address.rfind(':');
  Require(colon != std::string::npos && colon > 0);
  const std::string port = address.substr(colon + 1);
  Require(!port.empty() && port.find_first_not_of("0123456789") == std::string::npos);
  Require(std::stoi(port) <= 65535);
  if (local_only) Require(HasLoopback(address));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  eta::fuzz::InputReader reader(data, size);
  eta::ServerOptions options;
  const uint8_t flags = reader.Byte();
  options.allow_unauthenticated_network = (flags & 1) != 0;
  options.allow_plaintext_network = (flags & 2) != 0;
  options.allow_network_metrics = (flags & 4) != 0;
  options.reflection = (flags & 8) != 0;
  options.socket_mode = (flags & 32) != 0 ? 0660 : 0600;
  const eta::Limits limits;
  if ((flags & 64) != 0) options.stall_timeout = limits.max_congestion;
  if ((flags & 16) != 0) {
    options.max_calibrations = reader.Int(-1, 4);
    (void)reader.Int(-1, 4);  // the inputs that are kept have it
    options.max_calibration_tokens = reader.Integer(-1, 5'000'000);
    options.max_connections = reader.Int(-1, 4);
    options.max_connections_per_peer = reader.Int(-1, 4);
    (void)reader.Int(0, 255);  // likewise
    if ((flags & 128) != 0) options.otlp_sampling = reader.Int(-1, 3) / 2.0;
  }
  options.listen = std::string(reader.Until('\n'));
  options.metrics_listen = std::string(reader.Until('\n'));
  if ((flags & 128) != 0) options.kv_events.publish = "tcp://" + options.metrics_listen;
  options.kv_events.allow_network = (flags & 128) != 0 && options.allow_network_metrics;
  options.health_listen = std::string(reader.Until('\n'));
  options.identity = std::string(reader.Until('\n'));
  options.tls_cert = std::string(reader.Until('\n'));
  options.tls_key = std::string(reader.Until('\n'));
  options.tls_client_ca = std::string(reader.Until('\n'));
  options.tenant_header = std::string(reader.Until('\n'));
  options.default_profile = std::string(reader.Until('\n'));
  if ((flags & 128) != 0) options.otlp_endpoint = std::string(reader.Until('\n'));
  while (!reader.empty()) options.admin_tenants.emplace_back(reader.Until('\n'));

  if (const auto listen = eta::ParseVllmListen(options.health_listen); listen.ok()) {
    Require(listen->name.find_first_of(" :\n") == std::string::npos);
    Require(options.health_listen.starts_with(listen->address));
    const auto again = eta::ParseAttentionName(Name(listen->attention));
    Require(listen->attention.mode ? again.ok() && *again == listen->attention : !again.ok());
    options.vllm_listen = {options.health_listen};
  }
  const bool gateways = eta::CheckVllmListen(options).ok();
  const bool opened = gateways && !options.vllm_listen.empty() &&
                      !eta::IsLocalAddress(eta::ParseVllmListen(options.vllm_listen[0])->address);
  Require(!opened || ((options.allow_unauthenticated_network || !options.tls_client_ca.empty()) &&
                      (options.allow_plaintext_network || !options.tls_cert.empty())));

  const bool known = options.allow_unauthenticated_network || !options.identity.empty() ||
                     !options.tls_client_ca.empty();
  const bool hidden = options.allow_plaintext_network || !options.tls_cert.empty();
  const bool listens = eta::CheckListenAddress(options).ok();
  const bool metrics = eta::CheckMetricsAddress(options).ok();
  const bool health = eta::CheckHealthAddress(options).ok();
  const bool events = eta::CheckKvEventAddresses(options.kv_events).ok();
  const bool calls = eta::CheckCallOptions(options).ok();
  const bool spans = eta::CheckOtlp(options).ok();
  const bool is_unix = options.listen.starts_with("unix:");
  if (listens) {
    if (!is_unix) CheckTcp(options.listen, !(known && hidden));
    Require(is_unix ? options.max_connections_per_peer <= 0 : options.socket_mode == 0600);
    if (eta::IsLocalAddress(options.listen) && options.vllm_listen.empty()) {
      Require(!options.allow_unauthenticated_network && !options.allow_plaintext_network);
    }
  }
  if (eta::IsLocalAddress(options.listen) && !is_unix) CheckTcp(options.listen, true);
  if (metrics && !options.metrics_listen.empty()) {
    CheckTcp(options.metrics_listen, !options.allow_network_metrics);
    if (options.allow_network_metrics) Require(!HasLoopback(options.metrics_listen));
  }
  if (events && !options.kv_events.publish.empty()) {
    CheckTcp(options.metrics_listen, !options.kv_events.allow_network);
  }
  if (health && !options.health_listen.empty() && !options.health_listen.starts_with("unix:")) {
    CheckTcp(options.health_listen, false);
  }
  if (spans) Require(options.otlp_sampling >= 0.0 && options.otlp_sampling <= 1.0);
  if (spans && !options.otlp_endpoint.empty()) {
    Require(eta::OtlpByTls(options) || options.otlp_endpoint.starts_with("http://"));
    CheckTcp(eta::OtlpAddress(options), false);
    Require(eta::OtlpAddress(options).find_first_of("/@?# ") == std::string::npos);
  }
  if (calls) {
    Require(options.tls_cert.empty() == options.tls_key.empty());
    Require(options.admin_tenants.empty() || !options.tenant_header.empty());
    Require(options.tenant_header.empty() || options.tls_client_ca.empty() ||
            !options.identity.empty());
    Require(options.tenant_header.find_first_of("ABC \n\r:\"") == std::string::npos);
    Require(options.tenant_header != "authorization");
    Require(options.max_calibrations >= 1);
    Require(options.max_calibration_tokens >= 1);
    Require(options.max_calibration_tokens <= eta::kMaxCalibrationTokens);
    Require(options.max_connections >= 0 && options.max_connections_per_peer >= 0);
  }
  Require(eta::CheckOptions(options, limits).ok() ==
          (listens && metrics && health && gateways && events && calls && spans &&
           options.stall_timeout > limits.max_congestion));
  return 0;
}
