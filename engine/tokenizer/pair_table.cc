#include "engine/tokenizer/pair_table.h"

#include <utility>

namespace eta {

void PairTable::Insert(int32_t left, int32_t right, Made made) {
  if (2 * (size_ + 1) > slots_.size()) Grow();
  const uint64_t key = Key(left, right);
  size_t place = Place(key);
  for (; slots_[place].made; place = Next(place)) {
    if (slots_[place].key == key) return;
  }
  slots_[place] = {key, made};
  ++size_;
}

void PairTable::Grow() {
  std::vector<Slot> smaller(slots_.empty() ? 16 : 2 * slots_.size());
  smaller.swap(slots_);
  shift_ = __builtin_clzll(slots_.size()) + 1;
  for (const Slot& slot : smaller) {
    if (!slot.made) continue;
    size_t place = Place(slot.key);
    while (slots_[place].made) place = Next(place);
    slots_[place] = slot;
  }
}

}  // namespace eta
