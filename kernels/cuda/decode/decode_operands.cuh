// The operands of decode attention's products. Keys are A operands (mma.cuh) of 16 tokens. Values,
// transposed, are A operands of 16 coordinates. Both factors must agree on which token or
// coordinate is which row, and on the order of the inner dimension; any agreement works. So each
// form of the cache chooses what its bytes make cheap.
#pragma once

#include "kernels/cuda/decode/decode_plan.cuh"
#include "kernels/cuda/device/float8.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace eta::cuda::decode {

// The 16-bit cache. A stage is a K tile, then a V tile, [64][D] each. The calling warp has 16 of
// its tokens.
template <typename Element, int D>
class StageTokens {
 public:
  using Factor = Element;  // the type that is multiplied
  static constexpr bool kScaled = false;
  static constexpr int kLoads = 1;                         // A operands that one load brings
  static constexpr int kTileBytes = kStageTokens * D * 2;  // of K, and of V
  static constexpr int kStageBytes = 2 * kTileBytes;

  __device__ explicit StageTokens(std::byte* stage) : stage_(stage) {}

  // The token, 0 to 15, in row `row` of the keys.
  __device__ static int TokenOfRow(int row) { return row; }
  // The first of the two coordinates of a query that the calling lane holds in half `half` of the B
  // operand of step k.
  __device__ static int QueryCoordinate(int k, int half) {
    return k * 16 + half * 8 + threadIdx.x % 4 * 2;
  }
  // The coordinate whose sums the calling lane holds in rows lane / 4 + 8 * half of product m.
  __device__ static int ValueCoordinate(int m, int half) {
    return m * 16 + half * 8 + threadIdx.x % 32 / 4;
  }

  // Loads the A operands of steps k .. k + kLoads - 1. The inner dimension is the coordinates.
  __device__ void LoadKeys(int k, uint32_t (&a)[kLoads][4]) const {
    const int matrix = threadIdx.x % 32 / 8;
    const int token = first_token() + matrix % 2 * 8 + threadIdx.x % 8;
    LoadMatrices(a[0], SharedAddress(stage_) + ChunkOffset(token, 2 * k + matrix / 2));
  }
  // Loads the A operands of products m .. m + kLoads - 1, 16 coordinates each. The inner dimension
  // is the tokens.
  __device__ void LoadValues(int m, uint32_t (&a)[kLoads][4]) const {
    const int matrix = threadIdx.x % 32 / 8;
    const int token = first_token() + matrix / 2 * 8 + threadIdx.x % 8;
    LoadMatricesTransposed(
        a[0], SharedAddress(stage_) + kTileBytes + ChunkOffset(token, 2 * m + matrix % 2));
  }
  // Brings weights from the order of the keys' rows to the order of LoadValues' inner dimension.
  __device__ static void OrderWeights(uint32_t (&)[2]) {}

  // Clears values of tokens that do not exist, since a NaN there times a weight of 0 would be NaN.
  __device__ void ClearMissing(int valid) const {
    auto* chunks = reinterpret_cast<uint4*>(stage_ + kTileBytes + first_token() * D * 2);
    for (int at = valid * D / 8 + threadIdx.x % 32; at < 16 * D / 8; at += 32) {
      chunks[at] = make_uint4(0, 0, 0, 0);
    }
  }

 private:
  __device__ static int first_token() { return static_cast<int>(threadIdx.x) / 32 * 16; }
  // Offset of the 16-byte chunk `chunk` of a token's row, as in KvTile::Chunk.
  __device__ static uint32_t ChunkOffset(int token, int chunk) {
    const int place = D == 96 ? chunk ^ ((token >> 1) & 3) : chunk ^ (token & 7);
    return static_cast<uint32_t>(token * D * 2 + place * 16);
  }

  std::byte* stage_;
};

// The 8-bit cache. A stage is a K tile [64][D], a V tile [16][D] of words of four tokens, and the
// exponents of both, int8 [64] each. Within a step of 16, lanes with lane % 4 == c hold the
// coordinates 4c .. 4c + 3 of a key as inner elements, and the tokens 4c .. 4c + 3 of a value. Each
// is one word, widened in place.
template <int D>
class StageTokens<E4M3, D> {
 public:
  using Factor = Half;
  static constexpr bool kScaled = true;
  static constexpr int kLoads = 2;
  static constexpr int kTileBytes = kStageTokens * D;
  static constexpr int kStageBytes = 2 * kTileBytes + 2 * kStageTokens;

  __device__ explicit StageTokens(std::byte* stage) : stage_(stage) {}

  // Rows 0 to 7 are two tokens of each four, rows 8 to 15 the other two. The second half of the
  // quads is reversed, so that the rows of one matrix stand in different banks.
  __device__ static int TokenOfRow(int row) {
    const int quad = row % 8 / 2;
    return quad * 4 + (row / 8 ^ quad / 2) * 2 + row % 2;
  }
  __device__ static int QueryCoordinate(int k, int half) {
    return k * 16 + threadIdx.x % 4 * 4 + half * 2;
  }
  __device__ static int ValueCoordinate(int m, int half) {
    return m / 2 * 32 + threadIdx.x % 32 / 4 * 4 + m % 2 * 2 + half;
  }

  __device__ void LoadKeys(int k, uint32_t (&a)[kLoads][4]) const {
    const int matrix = threadIdx.x % 32 / 8;
    const int token = first_token() + TokenOfRow(matrix % 2 * 8 + threadIdx.x % 8);
    uint32_t words[4];
    LoadMatrices(words, SharedAddress(stage_) + ChunkOffset(token, k + matrix / 2));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i / 2][i % 2] = WidenPair(words[i]);
      a[i / 2][i % 2 + 2] = WidenPair(words[i] >> 16);
    }
  }
  __device__ void LoadValues(int m, uint32_t (&a)[kLoads][4]) const {
    const int lane = threadIdx.x % 32;
    const int quad = first_token() / 4 + lane % 4;
    const int word = quad * D + m / 2 * 32 + (lane / 4 * 4 ^ lane % 4 * 8);  // KvTile::ValueWord
    const uint4 four = *reinterpret_cast<const uint4*>(stage_ + kTileBytes + word * 4);
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i / 2][i % 2] = WidenPair(words[i]);
      a[i / 2][i % 2 + 2] = WidenPair(words[i] >> 16);
    }
  }
  __device__ static void OrderWeights(uint32_t (&weights)[2]) {
    const bool turned = threadIdx.x % 4 >= 2;
    const uint32_t first = turned ? weights[1] : weights[0];
    weights[1] = turned ? weights[0] : weights[1];
    weights[0] = first;
  }

  // The scales of the tokens in rows lane / 4 and lane / 4 + 8.
  struct Scales {
    float key[2];
    int value_exponent[2];
  };
  __device__ Scales LoadScales() const {
    const int row = threadIdx.x % 32 / 4;
    const std::byte* exponents = stage_ + 2 * kTileBytes + first_token() + row / 2 * 4;
    const auto keys = *reinterpret_cast<const uint32_t*>(exponents);
    const auto values = *reinterpret_cast<const uint32_t*>(exponents + kStageTokens);
    Scales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int shift = TokenOfRow(row + 8 * half) % 4 * 8;
      scales.key[half] = PowerOfTwo(static_cast<int8_t>(keys >> shift));
      scales.value_exponent[half] = static_cast<int8_t>(values >> shift);
    }
    return scales;
  }

  // Clears the exponents too, since they must not raise the exponent that weights are relative to.
  __device__ void ClearMissing(int valid) const {
    const int lane = threadIdx.x % 32;
    auto* words = reinterpret_cast<uint32_t*>(stage_ + kTileBytes + first_token() * D);
    for (int at = valid / 4 * D + lane; at < 4 * D; at += 32) {
      words[at] = at / D == valid / 4 ? words[at] & ((1u << valid % 4 * 8) - 1) : 0u;
    }
    auto* exponents = stage_ + 2 * kTileBytes + kStageTokens + first_token();
    if (lane >= valid && lane < 16) exponents[lane] = std::byte{0x80};
  }

 private:
  __device__ static int first_token() {
    return static_cast<int>(threadIdx.x) / 32 * 16;
  }
  __device__ static uint32_t ChunkOffset(int token, int chunk) {
    const int swizzle = D == 64 ? (token >> 1) & 3 : D == 96 ? (token >> 2) & 1 : token & 7;
    return static_cast<uint32_t>(token * D + (chunk ^ swizzle) * 16);
  }

  std::byte* stage_;
};

}  // namespace eta::cuda::decode
