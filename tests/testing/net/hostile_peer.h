// Attacks of peers that speak HTTP/2 to do harm. A server, or the front that shields it, must
// survive them.
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
  // The least that must have happened at the front within a second, also on a busy machine, for the
  // run to count as this attack.
  int64_t min_connections = 1;
  int64_t min_frames = 0;
  // True if the front must throw the peer out; otherwise it may refuse its calls one by one.
  bool thrown_out = false;
  // Attacks until `stop` and reconnects whenever it is thrown out.
  std::function<void(const HostileTarget& target, const std::atomic<bool>& stop,
                     AttackTally& tally)>
      run;
};

// rapid_reset, made_you_reset, unacknowledged_settings, continuation_bomb, bad_metadata, gzip_bomb,
// ping_flood, slow_headers, half_open, empty_frames, odd_headers, connection_flood,
// half_sent_messages.
const std::vector<Attack>& Attacks();

}  // namespace eta::testing
