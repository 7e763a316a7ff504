// A weight [N, K] as the CPU multiplies it: panels of 32 output channels. A panel stores the values
// of one k together, so a product streams the weights once, in address order.
//
// Storage: 16 bits if every part is bfloat16, or every part float16; float32 otherwise, which holds
// any mixture exactly; or int8 with one scale per channel (absmax / 127, symmetric).
//
// A panel [K][32], by storage:
//
//   float32   channel c at element c
//   float16   channel c at element c
//   bfloat16  32-bit word j holds channel j in its low half and channel j + 16 in its high half, so
//             one load yields two vectors by a shift and a mask
//   int8      channel c at element c
//
// Channels from N on are zero. The arrangement does not depend on the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/backend.h"
#include "kernels/cpu/host_memory.h"

namespace eta::cpu {

inline constexpr int64_t kPanelCols = 32;

enum class Storage : uint8_t { kFloat32, kFloat16, kBFloat16, kInt8 };

constexpr size_t StorageBytes(Storage storage) {
  return storage == Storage::kFloat32 ? 4 : storage == Storage::kInt8 ? 1 : 2;
}

class PackedMatrix final : public Matrix {
 public:
  // All weights zero.
  PackedMatrix(int64_t rows, int64_t cols, Storage storage);

  size_t bytes() const override;

  Storage storage() const { return storage_; }
  int64_t num_panels() const { return num_panels_; }
  size_t panel_bytes() const { return panel_bytes_; }
  const std::byte* panel(int64_t i) const {
    return data_.get() + static_cast<size_t>(i) * panel_bytes_;
  }
  std::byte* panel(int64_t i) { return data_.get() + static_cast<size_t>(i) * panel_bytes_; }

  // Scales of the channels, [num_panels * 32]; null unless the storage is int8.
  const float* scales() const { return scales_.get(); }
  float* scales() { return scales_.get(); }

  // Writes channel `row` as float32 [K]: exactly the values that a product uses.
  void ReadRow(int64_t row, float* out) const;

 private:
  Storage storage_;
  int64_t num_panels_;
  size_t panel_bytes_;
  HostMemory data_;
  std::unique_ptr<float[]> scales_;
};

}  // namespace eta::cpu
