#include "training/cpu/product.h"

#include <cblas.h>

#include <algorithm>
#include <mutex>

namespace eta::training::cpu {
namespace {

constexpr int64_t kTileRows = 192;
constexpr int64_t kTileCols = 192;

// OpenBLAS would start threads of its own inside each of ours.
void UseOneThread() {
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
}

// Element (row, col) of the operand as it is multiplied.
const float* At(const Operand& x, int64_t row, int64_t col) {
  return x.transposed == Transposed::kYes ? x.data + col * x.stride + row
                                          : x.data + row * x.stride + col;
}

}  // namespace

void Multiply(int64_t rows, int64_t cols, int64_t depth, float factor, const Operand& a,
              const Operand& b, bool accumulate, float* out, int64_t out_stride) {
  if (rows == 0 || cols == 0) return;
  UseOneThread();
  const auto flag = [](Transposed t) { return t == Transposed::kYes ? CblasTrans : CblasNoTrans; };
  cblas_sgemm(CblasRowMajor, flag(a.transposed), flag(b.transposed), static_cast<int>(rows),
              static_cast<int>(cols), static_cast<int>(depth), factor, a.data,
              static_cast<int>(a.stride), b.data, static_cast<int>(b.stride),
              accumulate ? 1.0f : 0.0f, out, static_cast<int>(out_stride));
}

void MultiplyOnAll(eta::cpu::Workers& workers, int64_t rows, int64_t cols, int64_t depth,
                   const Operand& a, const Operand& b, bool accumulate, float* out,
                   int64_t out_stride) {
  UseOneThread();
  const int64_t across = (cols + kTileCols - 1) / kTileCols;
  const int64_t down = (rows + kTileRows - 1) / kTileRows;
  workers.Run(across * down, [&](int64_t tile, int) {
    const int64_t row = tile / across * kTileRows;
    const int64_t col = tile % across * kTileCols;
    Multiply(std::min(kTileRows, rows - row), std::min(kTileCols, cols - col), depth, 1.0f,
             {At(a, row, 0), a.stride, a.transposed}, {At(b, 0, col), b.stride, b.transposed},
             accumulate, out + row * out_stride + col, out_stride);
  });
}

}  // namespace eta::training::cpu
