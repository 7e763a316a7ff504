// Splits a fuzzer's bytes into numbers and texts, for targets that raw bytes would not get far
// into. Past the end every value is 0 or empty.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>

namespace eta::fuzz {

// Ends the program unless `holds`, which must hold for every input.
inline void Require(bool holds) {
  if (!holds) std::abort();
}

class InputReader {
 public:
  InputReader(const uint8_t* data, size_t size)
      : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  // All remaining bytes; they are not consumed.
  std::string_view rest() const { return rest_; }

  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  bool Bool() { return (Byte() & 1) != 0; }

  // A number in [low, high], from as few bytes as the range needs.
  int64_t Integer(int64_t low, int64_t high) {
    const uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
    uint64_t value = 0;
    for (uint64_t left = span; left > 0; left >>= 8) value = value << 8 | Byte();
    if (span != UINT64_MAX) value %= span + 1;
    return static_cast<int64_t>(static_cast<uint64_t>(low) + value);
  }
  int32_t Int(int32_t low, int32_t high) { return static_cast<int32_t>(Integer(low, high)); }

  // A value from the next bytes as they are in memory. A floating-point number may be any value,
  // also NaN.
  template <typename T>
  T Raw() {
    T value{};
    const size_t size = std::min(sizeof(T), rest_.size());
    std::memcpy(&value, rest_.data(), size);
    rest_.remove_prefix(size);
    return value;
  }

  template <typename T>
  T Pick(std::initializer_list<T> choices) {
    return *(choices.begin() + Integer(0, static_cast<int64_t>(choices.size()) - 1));
  }

  // Reads a byte of length and that many bytes.
  std::string_view Text(size_t most = 255) {
    const size_t size = std::min({static_cast<size_t>(Byte()), most, rest_.size()});
    const std::string_view text = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return text;
  }

  // Reads up to `separator`, which is consumed too, or to the end.
  std::string_view Until(char separator) {
    const size_t end = std::min(rest_.find(separator), rest_.size());
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return text;
  }

 private:
  std::string_view rest_;
};

}  // namespace eta::fuzz
