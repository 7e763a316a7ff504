// What a server counts of its connections.
#pragma once

#include <cstdint>

namespace eta {

struct ConnectionFigures {
  int32_t open = 0;
  int32_t max = 0;
  // Since the start.
  int64_t accepted = 0;
  int64_t refused_full = 0;      // closed at once: as many as allowed are open ...
  int64_t refused_peer = 0;      // ... or as many of that peer
  int64_t refused_no_files = 0;  // ... or the process has no file descriptor left
  int64_t accept_errors = 0;     // of the operating system; with no file descriptor left too
};

}  // namespace eta
