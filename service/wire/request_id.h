// A request id for a call whose client gave none.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/str_format.h"

namespace eta {

// 64 random bits, for ids that need not be secret.
inline uint64_t DrawId() {
  thread_local std::mt19937_64 generator{[] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }()};
  return generator();
}

// "eta-" and 16 random hexadecimal digits.
inline std::string NewRequestId() {
  return absl::StrFormat("eta-%016x", DrawId());
}

}  // namespace eta
