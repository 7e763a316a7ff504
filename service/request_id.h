// A name for a call whose client gave it none.
#pragma once

#include <random>
#include <string>

#include "absl/strings/str_format.h"

namespace eta {

// "eta-" and 16 hexadecimal digits.
inline std::string NewRequestId() {
  thread_local std::mt19937_64 generator{[] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }()};
  return absl::StrFormat("eta-%016x", generator());
}

}  // namespace eta
