// A weight [N, K] of floats as the CPU multiplies it: panels of 32 output channels. A panel stores
// the values of one k together, so a product streams the weights once, in address order.
//
// Storage: 16 bits if every part is bfloat16, or every part float16; float32 otherwise, which holds
// any mixture exactly. Weights of 4 to 8 bits: packed/block_rows.h.
//
// A panel [K][32], by storage:
//
//   float32   channel c at element c
//   float16   channel c at element c
//   bfloat16  32-bit word j holds channel j in its low half and channel j + 16 in its high half, so
//             one load yields two vectors by a shift and a mask
//
// Channels from N on are zero. The arrangement does not depend on the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/memory/host_memory.h"
#include "kernels/cpu/packed/block_rows.h"
#include "kernels/cpu/packed/packed_matmul.h"
#include "kernels/cpu/workers.h"
#include "kernels/tensor_view.h"

namespace eta::cpu {

inline constexpr int64_t kPanelCols = 32;

enum class Storage : uint8_t { kFloat32, kFloat16, kBFloat16 };

constexpr size_t StorageBytes(Storage storage) {
  return storage == Storage::kFloat32 ? 4 : 2;
}

class PanelMatrix final : public Matrix {
 public:
  // All weights zero.
  PanelMatrix(int64_t rows, int64_t cols, Storage storage);

  size_t bytes() const override { return panel_bytes_ * static_cast<size_t>(num_panels_); }

  Storage storage() const { return storage_; }
  int64_t num_panels() const { return num_panels_; }
  size_t panel_bytes() const { return panel_bytes_; }
  const std::byte* panel(int64_t i) const {
    return data_.get() + static_cast<size_t>(i) * panel_bytes_;
  }
  std::byte* panel(int64_t i) { return data_.get() + static_cast<size_t>(i) * panel_bytes_; }

  // Writes channel `row` as float32 [K]: exactly the values that a product uses.
  void ReadRow(int64_t row, float* out) const;

 private:
  Storage storage_;
  int64_t num_panels_;
  size_t panel_bytes_;
  HostMemory data_;
};

// A weight [N, K] as the model stacked it: parts of output channels, one after the other, each as
// floats or in blocks.
class StackedMatrix final : public Matrix {
 public:
  struct FloatPart {
    std::unique_ptr<PanelMatrix> weight;
    int64_t first;  // the part's first channel
  };

  // Packs `parts`, which follow each other. Throws std::bad_alloc.
  StackedMatrix(Workers& workers, std::span<const HostMatrix> parts, WeightFormat format);

  size_t bytes() const override;
  std::span<const FloatPart> float_parts() const { return float_parts_; }
  std::span<const PackedPart> packed_parts() const { return packed_parts_; }
  // Writes channel `row` as float32 [K]; of blocks by ggml's formulas.
  void ReadRow(int64_t row, float* out) const;

 private:
  std::vector<FloatPart> float_parts_;
  std::vector<std::unique_ptr<BlockRows>> blocks_;
  std::vector<PackedPart> packed_parts_;  // of blocks_
};

// out = x * weight^T, beside others.
struct PanelProduct {
  TensorView x;
  const int32_t* rows;  // of x, one for each row of out; null: as they stand
  const PanelMatrix* weight;
  TensorView out;

  const float* row(int64_t i) const { return x.row(rows == nullptr ? i : rows[i]); }
};

// All of them, their tasks shared by the threads; added to `out` where it accumulates.
void MultiplyPanels(const Context& context, std::span<const PanelProduct> products,
                    bool accumulate);

}  // namespace eta::cpu
