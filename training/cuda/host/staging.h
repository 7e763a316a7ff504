// Host memory on its way to the device, by way of pinned memory, so that the caller neither waits
// for the device nor has to keep what it uploads.
#pragma once

#include <cstddef>
#include <span>

#include "training/cuda/host/workspace.h"

namespace eta::training::cuda {

// Not thread-safe.
class Staging {
 public:
  explicit Staging(Context& context) : context_(context) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Copies the pieces, one after another, each on a boundary of 256 bytes, to device memory that
  // stays until the next call. Returns its address, null after an error; `Offset` says where the
  // pieces are.
  std::byte* Upload(std::span<const std::span<const std::byte>> pieces);
  static size_t Offset(std::span<const std::span<const std::byte>> pieces, size_t index);

 private:
  // Two halves: one may still be copied from while the other is filled.
  struct Half {
    void* data = nullptr;
    size_t bytes = 0;
    cudaEvent_t copied = nullptr;
  };
  Context& context_;
  Half halves_[2];
  int next_ = 0;
};

}  // namespace eta::training::cuda
