// MatMul computes out [rows, N] = x [rows, K] * weight [N, K]^T (+ out, if accumulate). Embed
// copies each row's token vector [D] from the table [V, D], times a scale.
//
// Packed weights are sums of integers by groups of 32, scaled and added in float32 in the one order
// that all backends share (eta-semantics.md, "Packed weights").

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/matrix.h"
#include "kernels/reference/ops.h"
#include "kernels/weights/activation_groups.h"

namespace eta::reference {
namespace {

using QuantizedRow = std::vector<ActivationGroup>;

QuantizedRow Quantize(std::span<const float> row) {
  QuantizedRow groups;
  while (!row.empty()) {
    const auto group = row.first(std::min<size_t>(kGroupNumbers, row.size()));
    groups.push_back(QuantizeActivations(group));
    row = row.subspan(group.size());
  }
  return groups;
}

// Of numbers [begin, end) of a group.
float SumOfProducts(const IntegerGroup& w, const ActivationGroup& x, size_t begin, size_t end) {
  int32_t sum = 0;
  for (size_t i = begin; i < end; ++i) sum += int32_t{w.q[i]} * int32_t{x.x[i]};
  return static_cast<float>(sum);  // below 2^24, so it is exact
}

float PackedProduct(const IntegerForm& form, std::span<const IntegerGroup> weights,
                    std::span<const ActivationGroup> row) {
  const auto first = static_cast<size_t>(kGroupNumbers / form.scales);
  float sum = 0.0f;
  for (size_t g = 0; g < weights.size() && g < row.size(); ++g) {
    const IntegerGroup& w = weights[g];
    const ActivationGroup& x = row[g];
    float product = w.scale(0) * SumOfProducts(w, x, 0, first);
    if (form.scales == 2) {
      product = std::fma(w.scale(1), SumOfProducts(w, x, first, kGroupNumbers), product);
    }
    sum = std::fma(x.scale, product, sum);
    if (form.has_low) sum = std::fma(-w.low(), x.scaled_sum, sum);
  }
  return sum;
}

void Multiply(const PackedRows& weights, int64_t num_rows, const MatMulParams& params) {
  std::vector<QuantizedRow> x;
  for (int64_t r = 0; r < params.out.rows; ++r) {
    x.push_back(Quantize({params.x.row(r), static_cast<size_t>(params.x.cols)}));
  }
  for (int64_t n = 0; n < num_rows; ++n) {
    const std::vector<IntegerGroup> row = weights.Row(n);
    for (int64_t r = 0; r < params.out.rows; ++r) {
      const float sum = PackedProduct(FormOf(weights.layout.type), row, x[static_cast<size_t>(r)]);
      float& out = params.out.row(r)[n];
      out = params.accumulate ? out + sum : sum;
    }
  }
}

void Multiply(const DenseRows& weights, int64_t num_rows, const MatMulParams& params) {
  const int64_t cols = params.x.cols;
  for (int64_t r = 0; r < params.out.rows; ++r) {
    for (int64_t n = 0; n < num_rows; ++n) {
      const float* weight = weights.values.data() + n * cols;
      double sum = params.accumulate ? params.out.row(r)[n] : 0.0;
      for (int64_t i = 0; i < cols; ++i) {
        sum += static_cast<double>(params.x.row(r)[i]) * weight[i];
      }
      params.out.row(r)[n] = static_cast<float>(sum);
    }
  }
}

const StackedMatrix& Stacked(const Matrix* matrix) {
  return static_cast<const StackedMatrix&>(*matrix);
}

}  // namespace

std::unique_ptr<Matrix> PackMatrix(std::span<const HostMatrix> parts, WeightFormat format) {
  return std::make_unique<StackedMatrix>(parts, format);
}

void MatMul(const MatMulParams& params) {
  int64_t first = 0;
  for (const MatrixPart& part : Stacked(params.weight).parts()) {
    MatMulParams some = params;
    some.out = params.out.Columns(first, part.rows);
    std::visit([&](const auto& rows) { Multiply(rows, part.rows, some); }, part.kept);
    first += part.rows;
  }
}

void Embed(const BatchView& batch, const EmbedParams& params) {
  for (int32_t r = 0; r < batch.num_rows(); ++r) {
    float* const row = params.out.row(r);
    Stacked(params.table).ReadRow(batch.tokens[static_cast<size_t>(r)], row);
    for (int64_t i = 0; i < params.out.cols; ++i) row[i] *= params.scale;
  }
}

}  // namespace eta::reference
