// Rows of a backend's float32 tensors, copied to the host, so that rules and diagnostics read them
// on every backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor_view.h"

namespace eta {

// A backend that defers runs what was noted before a copy. So nothing is copied between
// SelectBlocks or ListBlocks and the DecodeAttention that follows: they are one piece of work.
class HostRows {
 public:
  // The first `count` rows of `tensor`. REQUIRES: float32.
  HostRows(Backend& backend, const TensorView& tensor, int64_t count);

  std::span<const float> row(int64_t i) const {
    return {values_.data() + i * stride_, static_cast<size_t>(cols_)};
  }

 private:
  int64_t stride_;
  int64_t cols_;
  std::vector<float> values_;
};

// `count` elements in the backend's memory; empty for null.
template <typename T>
std::vector<T> HostCopy(Backend& backend, const T* data, int64_t count) {
  if (data == nullptr) return {};
  std::vector<T> copy(static_cast<size_t>(count));
  backend.Download(copy.data(), reinterpret_cast<const std::byte*>(data), copy.size() * sizeof(T));
  return copy;
}

}  // namespace eta
