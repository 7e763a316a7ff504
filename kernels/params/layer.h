// One parameter struct for each op of a layer but its attention, in the order in which a layer
// calls them; and for the embedding. Pointers are in the backend's memory unless a comment says
// host. Shapes are in brackets; batch.h explains the letters.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv_geometry.h"
#include "kernels/rope_scaling.h"
#include "kernels/tensor_view.h"

namespace eta {

class Matrix;

// What the gate of a feed-forward goes through: x sigma(x); GELU in the form with tanh,
// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); or the clamped form of gpt-oss,
// g sigma(kClampedSlope g) (u + 1), of a gate g at most kClampedLimit and what it meets, u, within
// that on both sides (eta-semantics.md, "Experts").
enum class Activation : uint8_t { kSilu, kGelu, kClamped };
inline constexpr float kClampedSlope = 1.702f;
inline constexpr float kClampedLimit = 7.0f;

struct EmbedParams {
  const Matrix* table;  // [V, D]
  TensorView out;       // [R, D], R from the planned batch
  float scale = 1.0f;   // every element is multiplied by it
};

struct RmsNormParams {
  TensorView x;         // [rows, D]
  const float* weight;  // [D]
  float eps;
  std::span<const int32_t> rows;  // host; the rows of x to normalise, in order; empty: all rows
  TensorView out;                 // [rows, D]
  bool add = false;               // out, float32 then, gains the result
};

// out = x * weight^T (+ out, if accumulate). On the reference and the CPU each output element sums
// over K in one fixed order, so a row's bits do not depend on the other rows. So it is on CUDA for
// up to 16 rows of 16-bit weights, and up to 64 of packed ones, with K a multiple of 8. For more
// rows the library picks a kernel by their number, and last bits may differ.
struct MatMulParams {
  TensorView x;          // [rows, K]
  const Matrix* weight;  // [N, K]
  TensorView out;        // [rows, N]
  bool accumulate;
  // Row i is row i of the step. Then a CPU with AMX multiplies prefill rows on its tiles: the order
  // of a row's sum follows its kind, never its neighbours.
  bool rows_of_step = false;
};

// x += bias, in every row: float32, in place.
struct AddBiasParams {
  TensorView x;       // [rows, N]
  const float* bias;  // [N]

  bool operator==(const AddBiasParams&) const = default;
};

// Scales every head of q and k to a root mean square of 1 and multiplies it with the weight, in
// place: RmsNorm over the head's d elements. A head's sum runs in an order that d alone fixes.
struct NormHeadsParams {
  TensorView q;           // [rows, HQ * d]
  TensorView k;           // [rows, HKV * d]
  const float* q_weight;  // [d]
  const float* k_weight;  // [d]
  int32_t head_dim;
  float eps;

  bool operator==(const NormHeadsParams&) const = default;
};

// Rotates q and k in place by their rows' positions (eta-semantics.md, "Model"): half-split as in
// Hugging Face's LLaMA. The pair (i, i + d/2) turns by position * theta^(-2i/d), the frequency
// scaled, and grows by scaling.attention_factor. The position is that of the planned batch, and so
// is theta, but for layers that have their own. A layer without RoPE leaves the op out.
struct RopeParams {
  TensorView q;  // [R, HQ * d]
  TensorView k;  // [R, HKV * d]
  int32_t head_dim;
  RopeScaling scaling{};
  float theta = 0.0f;  // 0: that of the planned batch, by sequence

  bool operator==(const RopeParams&) const = default;
};

// Stores the rows' K and V, rounded to the cache's type, and writes the record of every block that
// this fills (eta-semantics.md, "Block index"). The running V total of block j is the sum of the
// stored V over positions 0 .. (j+1)*b - 1, built as total(j-1) + sum(block j). So it depends on
// the tokens alone, not on how the prompt was cut, and is right for shared prefixes too. Without
// kv.records it writes no record and reads no block but those of the rows.
struct AppendKvParams {
  TensorView k;  // [R, HKV * d], post-RoPE, if the layer has it
  TensorView v;  // [R, HKV * d]
  KvGeometry geometry;
  KvLayerView kv;

  bool operator==(const AppendKvParams&) const = default;
};

// thresholds = q W^T + b in float32 (eta-semantics.md, "Model"). Rows of sequences with frozen
// thresholds copy frozen[layer] instead and cost no predictor work. Without a weight only frozen
// rows are copied and all others become 0: a plain checkpoint's gate does not read them, and of
// rows with relative thresholds SelectBlocks writes them.
struct ThresholdParams {
  int32_t layer;
  TensorView q;         // [R, HQ * d], likewise
  const float* weight;  // [HQ, HQ * d]
  const float* bias;    // [HQ]
  TensorView out;       // [R, HQ]

  bool operator==(const ThresholdParams&) const = default;
};

// out = activation(gate) * up
struct SwiGluParams {
  TensorView gate_up;  // [R, 2F]: gate in the first F columns, up in the rest
  TensorView out;      // [R, F]
  Activation activation = Activation::kSilu;

  bool operator==(const SwiGluParams&) const = default;
};

}  // namespace eta
