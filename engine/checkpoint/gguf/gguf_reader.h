// Takes numbers and strings off the front of bytes of a GGUF file. The first that is not there
// whole ends it: from then on it gives zeros and empty strings, and ok() is false.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace eta {

class GgufReader {
 public:
  explicit GgufReader(std::string_view bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  std::string_view rest() const { return rest_; }

  template <typename T>
  T Number() {
    static_assert(std::is_arithmetic_v<T> && std::endian::native == std::endian::little);
    T value = 0;
    const std::string_view bytes = Bytes(sizeof(T));
    if (bytes.size() == sizeof(T)) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string_view String() { return Bytes(Number<uint64_t>()); }
  std::string_view Bytes(uint64_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace eta
