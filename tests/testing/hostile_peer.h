// Peers that speak HTTP/2 in order to harm: what a server, or the front that shields it, must
// outlast. Plaintext; the frames are made by hand, since no client library sends them.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace eta::testing {

// host:port (IPv4) or unix:path. Peers come from 127.0.0.66, where the target is of this host, so
// that limits by address tell them from honest ones.
using HostileTarget = std::string;

struct Attack {
  std::string name;
  // Until `stop`; connects anew as often as it is thrown out.
  std::function<void(const HostileTarget& target, const std::atomic<bool>& stop)> run;
};

// rapid_reset, unacknowledged_settings, continuation_bomb, bad_metadata, gzip_bomb, ping_flood,
// slow_headers, half_open, empty_frames, odd_headers, connection_flood.
const std::vector<Attack>& Attacks();

}  // namespace eta::testing
