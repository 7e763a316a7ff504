// Native Sparse Attention (Yuan et al., arXiv:2502.11089), the ops that it adds to those of
// params.h. Of a row t its three branches read
//   compression  one key and one value for each window of kCompressedWindow tokens, every
//                kCompressedStride tokens, that ends at or before t (equation 7)
//   selection    the kSelectedBlocks blocks of kRegulariserBlock keys that its weights over
//                compressed keys name (equations 8 to 12)
//   window       its last kSlidingWindow keys
// each with keys and values of its own, and a gate of every branch and head weighs their outputs
// (equation 5). Selection and window are Attention() with a KeySelection.
//
// The map of a window to a compressed key is the layer's own: a matrix product over the window's
// keys side by side, with a bias that holds the encoding of places in it, SwiGlu and a second
// product. RoPE then turns the compressed key by its window's middle.
//
// C = CompressedCount(T). Constants are the paper's (section 4.1).
#pragma once

#include <array>
#include <cstdint>

#include "training/attention_params.h"
#include "training/tensor.h"

namespace eta::training {

inline constexpr int32_t kCompressedWindow = 32;  // l
inline constexpr int32_t kCompressedStride = 16;  // stride, half of a window
inline constexpr int32_t kSelectedBlocks = 16;    // n
inline constexpr int32_t kSlidingWindow = 512;    // w
inline constexpr int32_t kBranches = 3;           // compression, selection, window

constexpr int32_t CompressedCount(int32_t tokens) {
  return tokens < kCompressedWindow ? 0 : (tokens - kCompressedWindow) / kCompressedStride + 1;
}
// Compressed keys that row t sees.
constexpr int32_t CompressedCountAt(int32_t t) {
  return CompressedCount(t + 1);
}

// Lays the tokens of each window side by side:
//   out[(b C + i) H + h][e d + x] = x[b T + i stride + e][h d + x]     e < kCompressedWindow
struct GatherWindowsParams {
  int32_t sequences;  // B
  int32_t length;     // T
  int32_t head_dim;   // d
  Tensor x;           // [B T, H d] activations
  Tensor out;         // [B C H, kCompressedWindow d] activations
};

// The gradient of x: a token has that of all windows which hold it, 0 where none does. Written.
struct GatherWindowsBackwardParams {
  GatherWindowsParams forward;  // x and out are not read
  Tensor grad_out;              // [B C H, kCompressedWindow d] activations
  Tensor grad_x;                // [B T, H d] activations
};

// Attention of every row to the compressed keys that it sees. A row that sees none has output 0 and
// an lse of -infinity.
//
// The importance of a block to a row is the sum, over the heads of its group and over the strides
// of the block, of the weights of the windows that hold the stride (equation 9). `selected` names
// for every row its own block, the one before it, the first one, and of the whole blocks between
// them the most important ones, up to kSelectedBlocks in all; of equals the earlier. It has the
// form of KeySelection::blocks. No gradient goes through the choice.
struct CompressedAttentionParams {
  AttentionShape shape;
  Tensor q;            // [B T, HQ d] activations, after RoPE
  Tensor k;            // [B C, HKV d] activations, after RoPE
  Tensor v;            // [B C, HKV d] activations
  Tensor out;          // [B T, HQ d] activations
  float* lse;          // [B, HQ, T]
  uint64_t* selected;  // [B, HKV, N, N], N = KeySelection::Blocks(T)
};

// Every gradient is written.
struct CompressedAttentionBackwardParams {
  CompressedAttentionParams forward;  // as it was given to the forward op, with what it wrote
  Tensor grad_out;                    // [B T, HQ d] activations
  Tensor grad_q;                      // [B T, HQ d] activations
  Tensor grad_k;                      // [B C, HKV d] activations
  Tensor grad_v;                      // [B C, HKV d] activations
};

// out = sum over branches c of sigma(gates[:, c HQ + h]) * branches[c]
struct MixBranchesParams {
  int32_t num_heads;                       // HQ
  Tensor gates;                            // [R, 3 HQ] activations
  std::array<Tensor, kBranches> branches;  // [R, HQ d] activations
  Tensor out;                              // [R, HQ d] activations
};

// Written.
struct MixBranchesBackwardParams {
  MixBranchesParams forward;                    // `out` is not read
  Tensor grad_out;                              // [R, HQ d] activations
  Tensor grad_gates;                            // [R, 3 HQ] activations; may be `gates`
  std::array<Tensor, kBranches> grad_branches;  // [R, HQ d] activations; may be `branches`
};

// to += from, in the type of both.
struct AddParams {
  Tensor from;  // [R, N] activations
  Tensor to;    // [R, N] activations
};

}  // namespace eta::training
