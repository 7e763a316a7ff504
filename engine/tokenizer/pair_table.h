// What two neighbouring symbols of a text make: a hash table by pair, in one array, since encoding
// looks up several pairs for each character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eta {

// Thread-safe while nobody inserts.
class PairTable {
 public:
  struct Made {
    int32_t piece = -1;
    uint32_t rank = UINT32_MAX;  // the lower, the sooner it is made

    explicit operator bool() const { return piece >= 0; }
  };

  // `left` and `right` are not negative. A pair that is there already keeps what it makes.
  void Insert(int32_t left, int32_t right, Made made);
  // False: the two make nothing. Negative symbols make nothing with any other.
  Made Find(int32_t left, int32_t right) const {
    if (left < 0 || right < 0 || slots_.empty()) return {};
    const uint64_t key = Key(left, right);
    size_t place = Place(key);
    while (slots_[place].made && slots_[place].key != key) place = Next(place);
    return slots_[place].made;
  }

 private:
  struct Slot {
    uint64_t key = 0;
    Made made;  // false: the slot is free
  };

  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  // Fibonacci hashing: the upper bits of the product depend on all bits of the key.
  size_t Place(uint64_t key) const { return key * 0x9E3779B97F4A7C15u >> shift_; }
  size_t Next(size_t place) const { return (place + 1) & (slots_.size() - 1); }
  void Grow();

  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  size_t size_ = 0;
  int shift_ = 64;  // 64 - log2 of the slots
};

}  // namespace eta
