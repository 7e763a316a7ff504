// Something borrowed that is given back exactly once: by Release, or when the lease is destroyed or
// takes another's place. Move-only; a default or moved-from one holds nothing. Used by one thread
// at a time.
#pragma once

#include <functional>
#include <utility>

namespace eta {

class Lease {
 public:
  Lease() = default;
  explicit Lease(std::function<void()> give_back) : give_back_(std::move(give_back)) {}
  Lease(Lease&& other) noexcept : give_back_(std::exchange(other.give_back_, nullptr)) {}
  Lease& operator=(Lease&& other) noexcept {
    if (this == &other) return *this;
    Release();
    give_back_ = std::exchange(other.give_back_, nullptr);
    return *this;
  }
  ~Lease() { Release(); }

  void Release() {
    if (const auto give_back = std::exchange(give_back_, nullptr)) give_back();
  }

 private:
  std::function<void()> give_back_;
};

}  // namespace eta
