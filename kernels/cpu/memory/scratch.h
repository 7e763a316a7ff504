// Working memory that an op keeps between calls, so that a step allocates nothing once it has
// warmed up. One thread at a time. Reserve() drops the previous contents.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace eta::cpu {

class Scratch {
 public:
  // `count` elements on a cache-line boundary, contents undefined.
  template <typename T>
  T* Reserve(size_t count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= kAlignment);
    const size_t bytes = (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    if (bytes > size_) {
      data_.reset(std::aligned_alloc(kAlignment, bytes));
      size_ = data_ != nullptr ? bytes : 0;
      if (data_ == nullptr) throw std::bad_alloc();
    }
    return static_cast<T*>(data_.get());
  }

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };

  std::unique_ptr<void, Free> data_;
  size_t size_ = 0;
};

}  // namespace eta::cpu
