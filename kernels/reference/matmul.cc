// MatMul computes out [rows, N] = x [rows, K] * weight [N, K]^T (+ out, if accumulate). Embed
// copies each row's token vector [D] from the table [V, D]. A weight has one of two formats: as in
// the checkpoint, or int8.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

// A matrix that holds, as float32, the values of its format.
class DenseMatrix final : public Matrix {
 public:
  DenseMatrix(int64_t rows, int64_t cols, std::vector<float> values)
      : Matrix(rows, cols), values_(std::move(values)) {}
  size_t bytes() const override { return values_.size() * sizeof(float); }
  const float* row(int64_t i) const { return values_.data() + i * cols(); }

 private:
  std::vector<float> values_;
};

// Rounds one output channel to 127 steps on each side of 0.
void RoundToInt8(std::span<float> channel) {
  float largest = 0.0f;
  for (const float w : channel) largest = std::max(largest, std::abs(w));
  if (largest == 0.0f) return;
  const float scale = largest / 127.0f;
  for (float& w : channel) w = std::nearbyint(w / scale) * scale;
}

const DenseMatrix& Dense(const Matrix* matrix) {
  return static_cast<const DenseMatrix&>(*matrix);
}

}  // namespace

std::unique_ptr<Matrix> PackMatrix(std::span<const HostMatrix> parts, WeightFormat format) {
  int64_t rows = 0;
  std::vector<float> values;
  for (const HostMatrix& part : parts) {
    for (int64_t i = 0; i < part.rows * part.cols; ++i) {
      values.push_back(LoadElement(part.dtype, part.data, i));
    }
    rows += part.rows;
  }
  const int64_t cols = parts.empty() ? 0 : parts.front().cols;
  if (format == WeightFormat::kInt8) {
    for (int64_t n = 0; n < rows; ++n) {
      RoundToInt8(
          std::span(values).subspan(static_cast<size_t>(n * cols), static_cast<size_t>(cols)));
    }
  }
  return std::make_unique<DenseMatrix>(rows, cols, std::move(values));
}

void MatMul(const MatMulParams& params) {
  const DenseMatrix& weight = Dense(params.weight);
  for (int64_t r = 0; r < params.out.rows; ++r) {
    for (int64_t n = 0; n < weight.rows(); ++n) {
      double sum = params.accumulate ? params.out.row(r)[n] : 0.0;
      for (int64_t i = 0; i < weight.cols(); ++i) {
        sum += static_cast<double>(params.x.row(r)[i]) * weight.row(n)[i];
      }
      params.out.row(r)[n] = static_cast<float>(sum);
    }
  }
}

void Embed(const BatchView& batch, const EmbedParams& params) {
  const DenseMatrix& table = Dense(params.table);
  for (int32_t r = 0; r < batch.num_rows(); ++r) {
    const float* from = table.row(batch.tokens[static_cast<size_t>(r)]);
    std::copy_n(from, table.cols(), params.out.row(r));
  }
}

}  // namespace eta::reference
