// The order in which the sequences of a text are seen: every pass over the text has one of its own.
#pragma once

#include <cstdint>
#include <vector>

namespace eta::training {

// Not thread-safe.
class SequenceOrder {
 public:
  // REQUIRES: 0 < sequences <= 2^32 - 1.
  SequenceOrder(uint64_t sequences, uint64_t seed);

  // The sequence that is seen at `turn`, which counts over all passes. Each pass has each once.
  uint64_t At(uint64_t turn);

 private:
  void Shuffle(uint64_t pass);

  uint64_t seed_;
  uint64_t pass_ = 0;
  std::vector<uint32_t> order_;  // of that pass
};

}  // namespace eta::training
