// How often a randomized test repeats itself: for a few seconds, or for a release (run.sh --long).
#pragma once

#include <cstdlib>

namespace eta {

inline bool LongRun() {
  return std::getenv("ETA_TEST_LONG") != nullptr;  // NOLINT(concurrency-mt-unsafe)
}

inline int Rounds(int usual, int in_a_long_run) {
  return LongRun() ? in_a_long_run : usual;
}

}  // namespace eta
