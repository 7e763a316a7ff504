// Embed reads rows of the table. EmbedBackward adds the gradients of all rows of one token in the
// order of the rows: the host sorts rows by token, and one block of threads takes a token.

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "training/cuda/rows/elements.cuh"
#include "training/cuda/rows/ops.h"

namespace eta::training::cuda {
namespace {

std::span<const std::byte> BytesOf(std::span<const int32_t> values) {
  return std::as_bytes(values);
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    CopyRows(const int32_t* tokens, Rows<const __nv_bfloat16> table, Rows<T> out, int64_t rows,
             int64_t cols) {
  Begin();
  const int64_t pieces = cols / kWidth;
  const int64_t index = ThreadIndex();
  if (index >= rows * pieces) return;
  const int64_t row = index / pieces;
  const int64_t col = index % pieces * kWidth;
  float values[kWidth];
  table.Load(tokens[row], col, values);
  out.Store(values, row, col);
}

// Block b adds rows order[begins[b] .. begins[b + 1]) to row tokens[b] of the table.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddRows(const int32_t* order, const int32_t* begins, const int32_t* tokens,
            Rows<const T> grad_out, float* grad_table, int64_t cols) {
  Begin();
  const int32_t begin = begins[blockIdx.x];
  const int32_t end = begins[blockIdx.x + 1];
  float* to = grad_table + tokens[blockIdx.x] * cols;
  for (int64_t col = threadIdx.x; col < cols; col += kThreads) {
    float sum = 0.0f;
#pragma unroll 8
    for (int32_t i = begin; i < end; ++i) {
      sum += eta::cuda::ToFloat(*grad_out.At(order[i], col));
    }
    to[col] += sum;
  }
}

}  // namespace

void Embed(Context& context, Staging& staging, const EmbedParams& params) {
  if (params.tokens.empty()) return;
  const std::span<const std::byte> pieces[] = {BytesOf(params.tokens)};
  const auto* tokens = reinterpret_cast<const int32_t*>(staging.Upload(pieces));
  if (tokens == nullptr) return;
  WithType(params.out.dtype, [&]<typename T>(T) {
    WithWidth(InFours(params.table) && InFours(params.out), [&](auto width) {
      eta::cuda::Launch(
          context.device, "Embed",
          {.grid = BlocksOf(params.out.rows * (params.out.cols / width())), .block = kThreads},
          CopyRows<T, width()>, tokens, RowsOf<const __nv_bfloat16>(params.table),
          RowsOf<T>(params.out), params.out.rows, params.out.cols);
    });
  });
}

void EmbedBackward(Context& context, Staging& staging, const EmbedBackwardParams& params) {
  if (params.grad_table == nullptr || params.tokens.empty()) return;
  std::vector<int32_t> order(params.tokens.size());
  std::iota(order.begin(), order.end(), 0);
  const auto token_of = [&](int32_t row) { return params.tokens[static_cast<size_t>(row)]; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return token_of(a) != token_of(b) ? token_of(a) < token_of(b) : a < b;
  });
  std::vector<int32_t> begins;
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t token = token_of(order[i]);
    if (!tokens.empty() && tokens.back() == token) continue;
    tokens.push_back(token);
    begins.push_back(static_cast<int32_t>(i));
  }
  begins.push_back(static_cast<int32_t>(order.size()));
  const std::span<const std::byte> pieces[] = {BytesOf(order), BytesOf(begins), BytesOf(tokens)};
  const std::byte* uploaded = staging.Upload(pieces);
  if (uploaded == nullptr) return;
  const auto piece = [&](size_t i) {
    return reinterpret_cast<const int32_t*>(uploaded + Staging::Offset(pieces, i));
  };
  WithType(params.grad_out.dtype, [&]<typename T>(T) {
    eta::cuda::Launch(context.device, "EmbedBackward",
                      {.grid = static_cast<unsigned>(tokens.size()), .block = kThreads}, AddRows<T>,
                      piece(0), piece(1), piece(2), RowsOf<const T>(params.grad_out),
                      params.grad_table, params.grad_out.cols);
  });
}

}  // namespace eta::training::cuda
