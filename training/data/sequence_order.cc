#include "training/data/sequence_order.h"

#include <cstddef>
#include <numeric>
#include <utility>

#include "calibration/needles/draws.h"

namespace eta::training {

SequenceOrder::SequenceOrder(uint64_t sequences, uint64_t seed)
    : seed_(seed), order_(static_cast<size_t>(sequences)) {
  Shuffle(0);
}

uint64_t SequenceOrder::At(uint64_t turn) {
  const uint64_t pass = turn / order_.size();
  if (pass != pass_) Shuffle(pass);
  return order_[static_cast<size_t>(turn % order_.size())];
}

// Fisher and Yates, from the identity: the order depends on seed and pass alone.
void SequenceOrder::Shuffle(uint64_t pass) {
  pass_ = pass;
  std::iota(order_.begin(), order_.end(), uint32_t{0});
  Draws draws(seed_, DrawPurpose::kSequenceOrder, pass);
  for (size_t i = order_.size() - 1; i > 0; --i) {
    std::swap(order_[i], order_[static_cast<size_t>(draws.Below(i + 1))]);
  }
}

}  // namespace eta::training
