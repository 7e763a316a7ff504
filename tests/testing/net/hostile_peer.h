// Attacks of peers that speak HTTP/2 in order to harm: what a server, or the front that shields it,
// must outlast.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/testing/net/hostile_connection.h"

namespace eta::testing {

struct Attack {
  std::string name;
  // What of it must have happened within a second at the front, on a busy machine too, for the
  // attack to be one.
  int64_t min_connections = 1;
  int64_t min_frames = 0;
  // Whether the front must throw it out: else it may refuse its calls one by one.
  bool thrown_out = false;
  // Until `stop`; connects anew as often as it is thrown out.
  std::function<void(const HostileTarget& target, const std::atomic<bool>& stop,
                     AttackTally& tally)>
      run;
};

// rapid_reset, made_you_reset, unacknowledged_settings, continuation_bomb, bad_metadata, gzip_bomb,
// ping_flood, slow_headers, half_open, empty_frames, odd_headers, connection_flood,
// half_sent_messages.
const std::vector<Attack>& Attacks();

}  // namespace eta::testing
