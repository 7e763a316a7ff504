// Random numbers by what they are for: a stream's draws depend on the run's seed, its purpose and
// its number alone, so that data can be made again from any position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/base/random.h"

namespace eta {

enum class DrawPurpose : uint32_t {
  kSequenceOrder = 1,
  kRetrieval = 2,
  kRetrievalTrial = 3,
  kRulerQuestion = 4,
  kRulerUnits = 5
};

class Draws {
 public:
  Draws(uint64_t seed, DrawPurpose purpose, uint64_t number)
      : seed_(seed), purpose_(purpose), number_(number) {}

  // Uniform in [0, limit). REQUIRES: 0 < limit <= 2^53.
  uint64_t Below(uint64_t limit) {
    const auto words =
        Philox({next_++, static_cast<uint32_t>(purpose_), static_cast<uint32_t>(number_),
                static_cast<uint32_t>(number_ >> 32)},
               {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    const uint64_t bits = (uint64_t{words[0]} << 21) ^ (words[1] >> 11);  // 53
    return static_cast<uint64_t>(static_cast<double>(bits) * 0x1p-53 * static_cast<double>(limit));
  }

 private:
  uint64_t seed_;
  DrawPurpose purpose_;
  uint64_t number_;
  uint32_t next_ = 0;
};

template <typename T>
void Shuffle(std::vector<T>& items, Draws& draws) {
  for (size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[static_cast<size_t>(draws.Below(i))]);
  }
}

}  // namespace eta
