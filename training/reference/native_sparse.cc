// Windows side by side, the mix of branches, and sums of tensors.

#include <algorithm>
#include <cmath>

#include "training/reference/elements.h"
#include "training/reference/ops.h"

namespace eta::training::reference {

void GatherWindows(const GatherWindowsParams& params) {
  const int32_t count = CompressedCount(params.length);
  const int64_t d = params.head_dim;
  const int64_t heads = params.x.cols / d;
  for (int64_t row = 0; row < params.out.rows; ++row) {
    const int64_t h = row % heads;
    const int64_t i = row / heads % count;
    const int64_t first = row / heads / count * params.length + i * kCompressedStride;
    for (int64_t at = 0; at < kCompressedWindow * d; ++at) {
      Set(params.out, row, at, Get(params.x, first + at / d, h * d + at % d));
    }
  }
}

void GatherWindowsBackward(const GatherWindowsBackwardParams& params) {
  const GatherWindowsParams& f = params.forward;
  const int64_t count = CompressedCount(f.length);
  const int64_t d = f.head_dim;
  const int64_t heads = params.grad_x.cols / d;
  for (int64_t row = 0; row < params.grad_x.rows; ++row) {
    const int64_t b = row / f.length;
    const int64_t t = row % f.length;
    for (int64_t col = 0; col < params.grad_x.cols; ++col) {
      double sum = 0.0;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t e = t - i * kCompressedStride;
        if (e < 0 || e >= kCompressedWindow) continue;
        sum += Get(params.grad_out, (b * count + i) * heads + col / d, e * d + col % d);
      }
      Set(params.grad_x, row, col, sum);
    }
  }
}

namespace {

double GateOf(const MixBranchesParams& params, int64_t row, int64_t branch, int64_t h) {
  return 1.0 / (1.0 + std::exp(-Get(params.gates, row, branch * params.num_heads + h)));
}

}  // namespace

void MixBranches(const MixBranchesParams& params) {
  const int64_t d = params.out.cols / params.num_heads;
  for (int64_t r = 0; r < params.out.rows; ++r) {
    for (int64_t col = 0; col < params.out.cols; ++col) {
      double sum = 0.0;
      for (int64_t c = 0; c < kBranches; ++c) {
        sum += GateOf(params, r, c, col / d) * Get(params.branches[static_cast<size_t>(c)], r, col);
      }
      Set(params.out, r, col, sum);
    }
  }
}

void MixBranchesBackward(const MixBranchesBackwardParams& params) {
  const MixBranchesParams& f = params.forward;
  const int64_t d = params.grad_out.cols / f.num_heads;
  for (int64_t r = 0; r < params.grad_out.rows; ++r) {
    for (int64_t c = 0; c < kBranches; ++c) {
      const auto branch = static_cast<size_t>(c);
      for (int64_t h = 0; h < f.num_heads; ++h) {
        const double gate = GateOf(f, r, c, h);
        double grad_gate = 0.0;
        for (int64_t col = h * d; col < (h + 1) * d; ++col) {
          const double grad = Get(params.grad_out, r, col);
          grad_gate += grad * Get(f.branches[branch], r, col);
          Set(params.grad_branches[branch], r, col, gate * grad);
        }
        Set(params.grad_gates, r, c * f.num_heads + h, grad_gate * gate * (1.0 - gate));
      }
    }
  }
}

void Add(const AddParams& params) {
  for (int64_t r = 0; r < params.to.rows; ++r) {
    for (int64_t i = 0; i < params.to.cols; ++i) {
      AddTo(params.to, r, i, Get(params.from, r, i));
    }
  }
}

}  // namespace eta::training::reference
