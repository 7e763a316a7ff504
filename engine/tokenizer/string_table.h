// Many short strings, by index: one array of bytes, and where each string begins in it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace eta {

// Thread-safe while nobody adds. Views are valid until the next Add.
class StringTable {
 public:
  void Add(std::string_view text) {
    bytes_ += text;
    ends_.push_back(bytes_.size());
  }
  size_t size() const { return ends_.size(); }
  size_t bytes() const { return bytes_.size(); }
  // REQUIRES: index < size().
  std::string_view operator[](size_t index) const {
    const size_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(bytes_).substr(begin, ends_[index] - begin);
  }

 private:
  std::string bytes_;
  std::vector<size_t> ends_;  // by index
};

}  // namespace eta
