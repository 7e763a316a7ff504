// Weights of the reference: parts of rows, one after the other, each as floats or as blocks.
#pragma once

#include <span>
#include <variant>
#include <vector>

#include "kernels/backend.h"
#include "kernels/weights/ggml_type.h"
#include "kernels/weights/integer_groups.h"

namespace eta::reference {

struct DenseRows {
  std::vector<float> values;  // [rows, cols]
};

struct PackedRows {
  GgmlLayout layout;
  size_t row_bytes;
  std::vector<std::byte> blocks;  // [rows, row_bytes]

  // Row `i` of the part, [ceil(cols / 32)].
  std::vector<IntegerGroup> Row(int64_t i) const;
};

struct MatrixPart {
  int64_t rows;
  std::variant<DenseRows, PackedRows> kept;
};

class StackedMatrix final : public Matrix {
 public:
  StackedMatrix(std::span<const HostMatrix> parts, WeightFormat format);

  size_t bytes() const override;
  std::span<const MatrixPart> parts() const { return parts_; }
  // Writes row `row` as float32 [cols].
  void ReadRow(int64_t row, float* out) const;

 private:
  std::vector<MatrixPart> parts_;
};

}  // namespace eta::reference
