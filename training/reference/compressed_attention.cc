// Attention to compressed keys, one row at a time, and the choice of blocks by its weights:
// training/native_sparse_params.h is its definition.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "training/reference/elements.h"
#include "training/reference/ops.h"

namespace eta::training::reference {
namespace {

// The windows that query `t` of head `h` sees.
struct SeenWindows {
  std::vector<double> weight;
  double lse;
};

SeenWindows WeighWindows(const CompressedAttentionParams& params, int32_t b, int32_t h, int32_t t) {
  const AttentionShape& shape = params.shape;
  const int64_t d = shape.head_dim;
  const int64_t row = int64_t{b} * shape.length + t;
  const int64_t first = int64_t{b} * CompressedCount(shape.length);
  SeenWindows seen = {{}, -std::numeric_limits<double>::infinity()};
  for (int32_t i = 0; i < CompressedCountAt(t); ++i) {
    double dot = 0.0;
    for (int64_t e = 0; e < d; ++e) {
      dot += Get(params.q, row, h * d + e) * Get(params.k, first + i, h / shape.group() * d + e);
    }
    seen.weight.push_back(shape.scale * dot);
  }
  if (seen.weight.empty()) return seen;
  const double largest = *std::max_element(seen.weight.begin(), seen.weight.end());
  double total = 0.0;
  for (const double score : seen.weight) total += std::exp(score - largest);
  seen.lse = largest + std::log(total);
  for (double& weight : seen.weight) weight = std::exp(weight - largest) / total;
  return seen;
}

// Of block `j` to one head. Stride u lies in windows u - 1 and u.
double ImportanceOf(const std::vector<double>& weight, int32_t j) {
  static_assert(kCompressedWindow == 2 * kCompressedStride);
  constexpr int32_t kStrides = kRegulariserBlock / kCompressedStride;
  const auto seen = static_cast<int32_t>(weight.size());
  double sum = 0.0;
  for (int32_t u = j * kStrides; u < (j + 1) * kStrides; ++u) {
    for (int32_t i = std::max(u - 1, 0); i <= std::min(u, seen - 1); ++i) {
      sum += weight[static_cast<size_t>(i)];
    }
  }
  return sum;
}

// The blocks that a row of block `own` selects, `importance` being that of blocks 0 .. own.
std::vector<int32_t> SelectBlocks(const std::vector<double>& importance, int32_t own) {
  std::vector<int32_t> blocks(static_cast<size_t>(own) + 1);
  std::iota(blocks.begin(), blocks.end(), 0);
  const auto always = [&](int32_t j) { return j == 0 || j + 1 >= own; };
  std::stable_sort(blocks.begin(), blocks.end(), [&](int32_t a, int32_t b) {
    if (always(a) || always(b)) return always(a) && !always(b);
    return importance[static_cast<size_t>(a)] > importance[static_cast<size_t>(b)];
  });
  if (blocks.size() > kSelectedBlocks) blocks.resize(kSelectedBlocks);
  return blocks;
}

void MarkSelected(const CompressedAttentionParams& params, int32_t b, int32_t kv_head, int32_t t,
                  const std::vector<double>& importance) {
  const int64_t n = KeySelection::Blocks(params.shape.length);
  const int32_t own = t / kRegulariserBlock;
  for (const int32_t j : SelectBlocks(importance, own)) {
    params.selected[((int64_t{b} * params.shape.num_kv_heads + kv_head) * n + j) * n + own] |=
        uint64_t{1} << t % kRegulariserBlock;
  }
}

}  // namespace

void CompressedAttention(const CompressedAttentionParams& params) {
  const AttentionShape& shape = params.shape;
  const int64_t d = shape.head_dim;
  const int64_t n = KeySelection::Blocks(shape.length);
  std::fill_n(params.selected, int64_t{shape.sequences} * shape.num_kv_heads * n * n, 0);
  for (int32_t b = 0; b < shape.sequences; ++b) {
    const int64_t first = int64_t{b} * CompressedCount(shape.length);
    for (int32_t t = 0; t < shape.length; ++t) {
      std::vector<double> importance(static_cast<size_t>(t / kRegulariserBlock) + 1, 0.0);
      for (int32_t h = 0; h < shape.num_query_heads; ++h) {
        const int32_t kv_head = h / shape.group();
        const SeenWindows seen = WeighWindows(params, b, h, t);
        params.lse[(int64_t{b} * shape.num_query_heads + h) * shape.length + t] =
            static_cast<float>(seen.lse);
        for (int64_t e = 0; e < d; ++e) {
          double sum = 0.0;
          for (size_t i = 0; i < seen.weight.size(); ++i) {
            sum += seen.weight[i] *
                   Get(params.v, first + static_cast<int64_t>(i), int64_t{kv_head} * d + e);
          }
          Set(params.out, int64_t{b} * shape.length + t, h * d + e, sum);
        }
        for (size_t j = 0; j < importance.size(); ++j) {
          importance[j] += ImportanceOf(seen.weight, static_cast<int32_t>(j));
        }
        if ((h + 1) % shape.group() != 0) continue;
        MarkSelected(params, b, kv_head, t, importance);
        std::fill(importance.begin(), importance.end(), 0.0);
      }
    }
  }
}

// dS = P (dP - sum_i P_i dP_i), dP = <grad_out, v>.
void CompressedAttentionBackward(const CompressedAttentionBackwardParams& params) {
  const CompressedAttentionParams& f = params.forward;
  const AttentionShape& shape = f.shape;
  const int64_t d = shape.head_dim;
  const int64_t kv_cols = shape.num_kv_heads * d;
  const auto elements = static_cast<size_t>(shape.sequences * CompressedCount(shape.length)) *
                        static_cast<size_t>(kv_cols);
  std::vector<double> grad_k(elements, 0.0);
  std::vector<double> grad_v(elements, 0.0);
  for (int32_t b = 0; b < shape.sequences; ++b) {
    for (int32_t t = 0; t < shape.length; ++t) {
      const int64_t row = int64_t{b} * shape.length + t;
      for (int32_t h = 0; h < shape.num_query_heads; ++h) {
        const std::vector<double> weight = WeighWindows(f, b, h, t).weight;
        // Of a window's key and value, in rows of `kv_cols`.
        const auto at = [&](size_t i) {
          return (static_cast<int64_t>(b) * CompressedCount(shape.length) +
                  static_cast<int64_t>(i)) *
                     kv_cols +
                 h / shape.group() * d;
        };
        std::vector<double> grad_weight(weight.size(), 0.0);
        double mean = 0.0;
        for (size_t i = 0; i < weight.size(); ++i) {
          for (int64_t e = 0; e < d; ++e) {
            const double grad = Get(params.grad_out, row, h * d + e);
            const int64_t v = at(i) + e;
            grad_weight[i] += grad * Get(f.v, v / kv_cols, v % kv_cols);
            grad_v[static_cast<size_t>(v)] += weight[i] * grad;
          }
          mean += weight[i] * grad_weight[i];
        }
        std::vector<double> grad_q(static_cast<size_t>(d), 0.0);
        for (size_t i = 0; i < weight.size(); ++i) {
          const double grad_score = shape.scale * weight[i] * (grad_weight[i] - mean);
          for (int64_t e = 0; e < d; ++e) {
            const int64_t k = at(i) + e;
            grad_q[static_cast<size_t>(e)] += grad_score * Get(f.k, k / kv_cols, k % kv_cols);
            grad_k[static_cast<size_t>(k)] += grad_score * Get(f.q, row, h * d + e);
          }
        }
        for (int64_t e = 0; e < d; ++e) {
          Set(params.grad_q, row, h * d + e, grad_q[static_cast<size_t>(e)]);
        }
      }
    }
  }
  for (size_t i = 0; i < elements; ++i) {
    const auto at = static_cast<int64_t>(i);
    Set(params.grad_k, at / kv_cols, at % kv_cols, grad_k[i]);
    Set(params.grad_v, at / kv_cols, at % kv_cols, grad_v[i]);
  }
}

}  // namespace eta::training::reference
