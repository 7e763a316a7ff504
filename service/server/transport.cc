#include "service/server/transport.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "service/calibrate/calibrate_reactor.h"
#include "service/profiles/profile_service.h"

namespace eta {
namespace {

constexpr int kMaxStreams = 100;                             // of a connection, at a time
constexpr int kMaxMetadataBytes = 8 << 10;                   // of a call
constexpr size_t kAnsweredAboveBytes = size_t{1} << 20;      // beyond a method's own limit
constexpr std::chrono::milliseconds kMaxPingWait{10'000};    // unanswered for so long: peer is gone
constexpr std::chrono::milliseconds kMinClientPing{20'000};  // who pings faster is sent away
constexpr std::chrono::milliseconds kMaxIdle{900'000};       // of a connection without calls

int Milliseconds(std::chrono::milliseconds duration) {
  return static_cast<int>(std::clamp<int64_t>(duration.count(), 0, INT32_MAX));
}

// The transport has one limit for all methods, and tells a client no more than that one; each call
// holds its message against its own. Of a message that is not much over it, its call says what is
// too long.
int LongestMessage(const ServerOptions& options, bool has_store) {
  const size_t answered = static_cast<size_t>(options.max_message_bytes) + kAnsweredAboveBytes;
  const size_t longest =
      has_store ? std::max({answered, kMaxCalibrateBytes, ProfileService::kMaxImportBytes})
                : answered;
  return static_cast<int>(std::min<size_t>(longest, INT32_MAX));
}

std::chrono::milliseconds PingWait(const ServerOptions& options) {
  return std::min(options.keepalive_interval, kMaxPingWait);
}

std::chrono::milliseconds AgeGrace(const ServerOptions& options, const Limits& limits) {
  if (options.max_connection_age_grace.count() > 0) return options.max_connection_age_grace;
  return std::max(limits.default_deadline, options.default_calibrate_deadline) +
         limits.max_congestion;
}

}  // namespace

void ConfigureTransport(const ServerOptions& options, const Limits& limits, bool has_store,
                        grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(LongestMessage(options, has_store));
  // A compressed message is inflated before its size is known.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  const std::pair<const char*, int> arguments[] = {
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams},
      {GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes},
      {GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_interval)},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(PingWait(options))},
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, Milliseconds(kMinClientPing)},
      {GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2},
      {GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(kMaxIdle)},
      {GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(options.max_connection_age)},
      {GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(AgeGrace(options, limits))},
      {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000},
  };
  for (const auto& [name, value] : arguments) builder.AddChannelArgument(name, value);
}

Acceptor::Options AcceptorOptions(const ServerOptions& options) {
  return {.listen = {.address = options.listen,
                     .file_mode = static_cast<mode_t>(options.socket_mode),
                     .user_timeout = PingWait(options)},
          .max_connections = options.max_connections,
          .max_connections_per_peer = options.max_connections_per_peer};
}

}  // namespace eta
