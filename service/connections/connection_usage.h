// A server's counts of its connections.
#pragma once

#include <cstdint>

namespace eta {

struct ConnectionUsage {
  int32_t open = 0;
  int32_t max = 0;
  // Counts since the start:
  int64_t accepted = 0;
  int64_t refused_full = 0;      // closed at once: the maximum is open
  int64_t refused_peer = 0;      // closed at once: the peer's maximum is open
  int64_t refused_no_files = 0;  // closed at once: no file descriptor is left
  int64_t accept_errors = 0;     // of the operating system, also for want of file descriptors
};

}  // namespace eta
