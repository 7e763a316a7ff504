// Random packed weights, as a GGUF file stores them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/weights/float8_scales.h"
#include "kernels/weights/ggml_type.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {

// The types whose products are of integers; for ever.
const std::vector<GgmlLayout>& PackedLayouts();

// Blocks with random bits, and with float16 scales of both signs around 2^-6.
std::vector<std::byte> RandomBlocks(Random& random, const GgmlLayout& layout, size_t count);

// A matrix [rows, cols] of such blocks, which points to `layout` and into `storage`. REQUIRES: cols
// is a multiple of the layout's block.
HostMatrix RandomPackedMatrix(Random& random, const GgmlLayout& layout, int64_t rows, int64_t cols,
                              std::vector<std::byte>& storage);

// A matrix [rows, cols] in e4m3, without its NaN, with random scales of both signs around 2^-8 for
// blocks of so many rows and columns.
class Float8Matrix {
 public:
  Float8Matrix(Random& random, int64_t rows, int64_t cols, int64_t block_rows, int64_t block_cols);
  Float8Matrix(const Float8Matrix&) = delete;
  Float8Matrix& operator=(const Float8Matrix&) = delete;

  // Points into this.
  const HostMatrix& host() const { return host_; }

 private:
  std::vector<uint8_t> codes_;
  std::vector<float> scales_;
  Float8Scales float8_;
  HostMatrix host_;
};

// Its numbers by ggml's formulas, or as host_rows.h has them.
HostTensor Unpacked(const HostMatrix& matrix);

}  // namespace eta::testing
