// What this machine can do at best, measured in the same run as a benchmark: the scale on which its
// figures are read.
#pragma once

#include <functional>
#include <vector>

#include "kernels/cpu/workers.h"

namespace eta::bench {

struct Timing {
  double best = 0.0;    // seconds
  double median = 0.0;  // seconds
};

// Runs `work` until `seconds` have passed, at least three times after one run to warm up.
Timing Measure(double seconds, const std::function<void()>& work);

// float32 multiply-adds in registers, FLOP/s, over the first `num_threads` threads.
double PeakFlops(cpu::Workers& workers, int num_threads);

// Bytes/s when every thread reads its own part of a buffer of `bytes` again and again.
double ReadBandwidth(cpu::Workers& workers, int num_threads, size_t bytes);

}  // namespace eta::bench
