// The product of a panel of packed weights and 16 rows on AMX tiles (simd/amx_tile-inl.h), with the
// bits of panel_product-inl.h: sums of integers are exact.
//
// A tile multiplies the terms that share a scale, 32 or 16 of them, so it is half or a quarter
// full. Its sums go through memory to the vector units, which scale and add them while the tiles
// compute those of the next group. A panel is unpacked once for all rows of a task.
//
// Included once per target (Highway's foreach_target).

#if defined(ETA_KERNELS_CPU_AMX_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_AMX_PRODUCT_INL_H_
#undef ETA_KERNELS_CPU_AMX_PRODUCT_INL_H_
#else
#define ETA_KERNELS_CPU_AMX_PRODUCT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/packed/block_rows.h"
#include "kernels/cpu/packed/panel_group-inl.h"
#include "kernels/cpu/packed/quantized_rows.h"
#include "kernels/cpu/simd/amx_tile-inl.h"
#include "kernels/cpu/simd/product_output-inl.h"

#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

// An unpacked group, as tiles of columns take it: byte 4 c + i of line t is q of channel c and term
// 4 t + i, with its sign.
inline constexpr size_t kUnpackedBytes = kQuads * kAmxRowBytes;

// Terms that a type's tiles multiply.
template <GgmlType kType>
constexpr size_t AmxDepthOf() {
  return kGroupNumbers / FormOf(kType).scales;
}

template <int kBits, size_t kQuad = 0>
HWY_INLINE void UnpackQuads(const StoredNumbers<kBits>& u, Bytes offset, uint8_t* to) {
  if constexpr (kQuad < kQuads) {
    hn::Store(hn::Sub(u.template Get<kQuad>(0), offset), Byte(), to + kQuad * kAmxRowBytes);
    UnpackQuads<kBits, kQuad + 1>(u, offset, to);
  }
}

// `to` has kUnpackedBytes for each group.
template <GgmlType kType>
HWY_NOINLINE void UnpackPanel(const BlockRows& weight, int64_t panel, uint8_t* to) {
  constexpr IntegerForm kForm = FormOf(kType);
  const Bytes offset = hn::Set(Byte(), static_cast<uint8_t>(kForm.offset));
  const uint8_t* numbers = weight.numbers(panel);
  for (size_t g = 0; g < weight.num_groups(); ++g, numbers += NumberBytes(kForm)) {
    UnpackQuads(StoredNumbers<StoredAs(kForm)>{numbers}, offset, to + g * kUnpackedBytes);
  }
}

// Tiles kTile and, of types with two scales, kTile + 1 become the sums of group x of 16 rows.
template <GgmlType kType, int kTile>
HWY_INLINE void AmxMultiplyGroup(const QuantizedGroup* x, const uint8_t* numbers) {
  const auto* rows = reinterpret_cast<const std::byte*>(x);
  AmxLoad<6>(rows, sizeof(QuantizedGroup));
  AmxLoad<4>(numbers);
  AmxZero<kTile>();
  AmxMultiplyBytes<kTile, 6, 4>();
  if constexpr (FormOf(kType).scales == 2) {
    constexpr size_t kDepth = AmxDepthOf<kType>();
    AmxLoad<7>(rows + kDepth, sizeof(QuantizedGroup));
    AmxLoad<5>(numbers + kDepth / 4 * kAmxRowBytes);
    AmxZero<kTile + 1>();
    AmxMultiplyBytes<kTile + 1, 7, 5>();
  }
}

// Sums of integers on their way from the tiles, of the two halves if a type has two scales.
struct alignas(64) GroupSums {
  int32_t integers[2][kAmxRows][kPackedChannels];
};

template <GgmlType kType, int kTile>
HWY_INLINE void AmxStoreGroup(GroupSums& sums) {
  AmxStore<kTile>(sums.integers[0]);
  if constexpr (FormOf(kType).scales == 2) AmxStore<kTile + 1>(sums.integers[1]);
}

// sums[r] + the group's products with rows x[r].
template <GgmlType kType>
HWY_INLINE void AddStoredGroup(const GroupSums& group, const GroupScales& scales,
                               const QuantizedGroup* x, Floats (&sums)[kAmxRows]) {
  constexpr IntegerForm kForm = FormOf(kType);
  const Float d;
  const auto load = [&](size_t half, size_t r) HWY_ATTR {
    return hn::ConvertTo(d, hn::Load(Int(), group.integers[half][r]));
  };
#pragma GCC unroll 16
  for (size_t r = 0; r < kAmxRows; ++r) {
    Floats scaled = hn::Mul(scales.scale[0], load(0, r));
    if constexpr (kForm.scales == 2) scaled = hn::MulAdd(scales.scale[1], load(1, r), scaled);
    sums[r] = hn::MulAdd(hn::Set(d, x[r].scale), scaled, sums[r]);
    if constexpr (kForm.has_low) {
      sums[r] = hn::NegMulAdd(scales.low, hn::Set(d, x[r].scaled_sum), sums[r]);
    }
  }
}

// As Product(), of a tile of 16 rows. `numbers` is of UnpackPanel(). REQUIRES: AmxTiles of
// AmxDepthOf<kType>() bytes.
template <GgmlType kType>
HWY_NOINLINE void AmxProduct(const QuantizedGroup* tile, const BlockRows& weight, int64_t panel,
                             const uint8_t* numbers, const Output& output, int64_t row,
                             int64_t rows, int64_t channel) {
  Floats sums[kAmxRows];
#pragma GCC unroll 16
  for (Floats& sum : sums) sum = hn::Zero(Float());
  __attribute__((uninitialized)) GroupSums group;
  const size_t num_groups = weight.num_groups();
  AmxMultiplyGroup<kType, 0>(tile, numbers);
  for (size_t g = 0; g < num_groups; ++g) {
    const QuantizedGroup* x = tile + g * kAmxRows;
    if (g + 1 < num_groups) {
      const uint8_t* next = numbers + (g + 1) * kUnpackedBytes;
      if (g % 2 == 0) {
        AmxMultiplyGroup<kType, 2>(x + kAmxRows, next);
      } else {
        AmxMultiplyGroup<kType, 0>(x + kAmxRows, next);
      }
    }
    if (g % 2 == 0) {
      AmxStoreGroup<kType, 0>(group);
    } else {
      AmxStoreGroup<kType, 2>(group);
    }
    __attribute__((uninitialized)) GroupScales scales;
    LoadScales<kType>(weight.units(panel), weight.factors(panel), g, 0, scales);
    AddStoredGroup<kType>(group, scales, x, sums);
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kAmxRows; ++r) {
    const auto i = static_cast<int64_t>(r);
    if (i == rows) break;
    StoreColumns(sums[r], output, row + i, channel);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // AVX-512

#endif  // include guard
