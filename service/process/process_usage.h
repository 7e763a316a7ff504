// What the operating system tells of this process, under the names that Prometheus clients share.
#pragma once

#include <cstdint>

namespace eta {

struct ProcessUsage {
  double cpu_seconds = 0.0;
  double start_time = 0.0;  // seconds since 1970
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  int64_t threads = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;
};

// From /proc; what cannot be read is 0.
ProcessUsage ReadProcessUsage();

}  // namespace eta
