// Windows side by side, the mix of branches, and sums of tensors.

#include <algorithm>
#include <cmath>

#include "training/cpu/ops.h"
#include "training/cpu/vector_math.h"

namespace eta::training::cpu {
namespace {

constexpr int64_t kRowsOfTask = 16;

float GateOf(const MixBranchesParams& params, int64_t row, int64_t branch, int64_t h) {
  return 1.0f / (1.0f + std::exp(-Row(params.gates, row)[branch * params.num_heads + h]));
}

}  // namespace

void GatherWindows(const Context& context, const GatherWindowsParams& params) {
  const int64_t count = CompressedCount(params.length);
  const int64_t d = params.head_dim;
  const int64_t heads = params.x.cols / d;
  ForRanges(context, params.out.rows, kRowsOfTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t window = row / heads;
      const int64_t first = window / count * params.length + window % count * kCompressedStride;
      for (int64_t e = 0; e < kCompressedWindow; ++e) {
        std::copy_n(Row(params.x, first + e) + row % heads * d, d, Row(params.out, row) + e * d);
      }
    }
  });
}

void GatherWindowsBackward(const Context& context, const GatherWindowsBackwardParams& params) {
  const int64_t length = params.forward.length;
  const int64_t count = CompressedCount(params.forward.length);
  const int64_t d = params.forward.head_dim;
  const int64_t heads = params.grad_x.cols / d;
  ForRanges(context, params.grad_x.rows, kRowsOfTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* grad_x = Row(params.grad_x, row);
      std::fill_n(grad_x, heads * d, 0.0f);
      const int64_t t = row % length;
      const int64_t last = std::min(t / kCompressedStride, count - 1);
      // The first window that ends after t.
      int64_t i =
          std::max<int64_t>(0, t - kCompressedWindow + kCompressedStride) / kCompressedStride;
      for (; i <= last; ++i) {
        for (int64_t h = 0; h < heads; ++h) {
          const float* grad = Row(params.grad_out, (row / length * count + i) * heads + h) +
                              (t - i * kCompressedStride) * d;
          for (int64_t x = 0; x < d; ++x) grad_x[h * d + x] += grad[x];
        }
      }
    }
  });
}

void MixBranches(const Context& context, const MixBranchesParams& params) {
  const int64_t d = params.out.cols / params.num_heads;
  ForRanges(context, params.out.rows, kRowsOfTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* out = Row(params.out, r);
      std::fill_n(out, params.out.cols, 0.0f);
      for (int64_t c = 0; c < kBranches; ++c) {
        const float* branch = Row(params.branches[static_cast<size_t>(c)], r);
        for (int64_t h = 0; h < params.num_heads; ++h) {
          const float gate = GateOf(params, r, c, h);
          for (int64_t i = h * d; i < (h + 1) * d; ++i) out[i] += gate * branch[i];
        }
      }
    }
  });
}

void MixBranchesBackward(const Context& context, const MixBranchesBackwardParams& params) {
  const MixBranchesParams& f = params.forward;
  const int64_t d = params.grad_out.cols / f.num_heads;
  ForRanges(context, params.grad_out.rows, kRowsOfTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* grad = Row(params.grad_out, r);
      for (int64_t c = 0; c < kBranches; ++c) {
        const auto at = static_cast<size_t>(c);
        for (int64_t h = 0; h < f.num_heads; ++h) {
          const float gate = GateOf(f, r, c, h);
          const float through = Dot(grad + h * d, Row(f.branches[at], r) + h * d, d);
          Row(params.grad_gates, r)[c * f.num_heads + h] = through * gate * (1.0f - gate);
          float* grad_branch = Row(params.grad_branches[at], r);
          for (int64_t i = h * d; i < (h + 1) * d; ++i) grad_branch[i] = gate * grad[i];
        }
      }
    }
  });
}

void Add(const Context& context, const AddParams& params) {
  ForRanges(context, params.to.rows, kRowsOfTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* from = Row(params.from, r);
      float* to = Row(params.to, r);
      for (int64_t i = 0; i < params.to.cols; ++i) to[i] += from[i];
    }
  });
}

}  // namespace eta::training::cpu
