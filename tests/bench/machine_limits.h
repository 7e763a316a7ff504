// The best that this machine can do, measured in the same run as a benchmark: the scale for its
// figures.
#pragma once

#include <functional>
#include <vector>

#include "kernels/cpu/workers.h"

namespace eta::bench {

struct Timing {
  double best = 0.0;    // seconds
  double median = 0.0;  // seconds
};

// Runs `work` until `seconds` have passed, at least three times, after one warm-up run.
Timing Measure(double seconds, const std::function<void()>& work);

// FLOP/s of float32 multiply-adds in registers, over the first `num_threads` threads.
double PeakFlops(cpu::Workers& workers, int num_threads);

// Bytes/s when every thread repeatedly reads its own part of a buffer of `bytes`.
double ReadBandwidth(cpu::Workers& workers, int num_threads, size_t bytes);

}  // namespace eta::bench
