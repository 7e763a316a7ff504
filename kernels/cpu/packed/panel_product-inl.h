// The product of a panel of packed weights and a tile of rows: the sums of all its channels and
// rows at once, a group of terms after the other, as eta-semantics.md has them.
//
// Included once per target (Highway's foreach_target).

#if defined(ETA_KERNELS_CPU_PANEL_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_PANEL_PRODUCT_INL_H_
#undef ETA_KERNELS_CPU_PANEL_PRODUCT_INL_H_
#else
#define ETA_KERNELS_CPU_PANEL_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/packed/block_rows.h"
#include "kernels/cpu/packed/panel_group-inl.h"
#include "kernels/cpu/packed/quantized_rows.h"
#include "kernels/cpu/simd/byte_products-inl.h"
#include "kernels/cpu/simd/product_output-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

// The distance in bytes of numbers at which groups are requested ahead of the product.
inline constexpr size_t kPrefetchBytes = 2048;

// Requests what the product reads of a group; behind a panel's last group are those of the next.
template <GgmlType kType>
HWY_INLINE void PrefetchGroup(const BlockRows& weight, int64_t panel, size_t group) {
  constexpr IntegerForm kForm = FormOf(kType);
  constexpr size_t kBytes = NumberBytes(kForm);
  if (group >= weight.num_groups()) {
    group -= weight.num_groups();
    ++panel;
  }
  const uint8_t* numbers = weight.numbers(panel) + group * kBytes;
  for (size_t line = 0; line < kBytes; line += 64) hwy::Prefetch(numbers + line);
  const size_t unit = kForm.nested ? group / kUnitGroups : group;
  hwy::Prefetch(weight.units(panel) + unit * (UnitBytes(kForm) / sizeof(uint16_t)));
  if constexpr (kForm.nested) {
    hwy::Prefetch(weight.factors(panel) + group * FactorBytes(kForm));
  }
}

// A half of the group's products, or all of them, times their scales: the first makes `scaled`, the
// second is added to it.
template <GgmlType kType, bool kVnni, size_t kHalf, int kRows, class Numbers>
HWY_INLINE void AddHalf(const Numbers& u, const GroupScales (&scales)[kPanelVectors],
                        const QuantizedGroup* x, Floats (&scaled)[kRows][kPanelVectors]) {
  constexpr IntegerForm kForm = FormOf(kType);
  constexpr size_t kCount = kQuads / kForm.scales;
  constexpr size_t kWords = sizeof(QuantizedGroup) / sizeof(int32_t);
  constexpr bool kStarts = kForm.offset != 0 && !TakesOffset<ProductBits(kForm), kVnni>();
  __attribute__((uninitialized)) Ints integers[kPanelVectors][kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Ints from =
        hn::Set(Int(), kStarts ? x[r].start[StartOf(kForm.offset) + kHalf] : kFirstSum);
#pragma GCC unroll 4
    for (size_t v = 0; v < kPanelVectors; ++v) integers[v][r] = from;
  }
  const QuadsFrom<Numbers, kHalf * kCount> quads{u};
  AddProducts<ProductBits(kForm), kVnni, kCount, kWords>(quads, x->x.data() + kHalf * kCount,
                                                         integers);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kPanelVectors; ++v) {
      scaled[r][v] = kHalf == 0 ? Scale(scales[v], integers[v][r])
                                : AddScaled(scales[v], integers[v][r], scaled[r][v]);
    }
  }
}

// sums[r][v] + the group's products with rows x[r].
template <GgmlType kType, bool kVnni, int kRows, class Numbers>
HWY_INLINE void AddGroup(const Numbers& u, const GroupScales (&scales)[kPanelVectors],
                         const QuantizedGroup* x, Floats (*sums)[kPanelVectors]) {
  constexpr IntegerForm kForm = FormOf(kType);
  const Float d;
  __attribute__((uninitialized)) Floats scaled[kRows][kPanelVectors];
  AddHalf<kType, kVnni, 0>(u, scales, x, scaled);
  if constexpr (kForm.scales == 2) AddHalf<kType, kVnni, 1>(u, scales, x, scaled);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Floats scale = hn::Set(d, x[r].scale);
#pragma GCC unroll 4
    for (size_t v = 0; v < kPanelVectors; ++v) {
      Floats& sum = sums[r][v];
      sum = hn::MulAdd(scale, scaled[r][v], sum);
      if constexpr (kForm.has_low) {
        sum = hn::NegMulAdd(scales[v].low, hn::Set(d, x[r].scaled_sum), sum);
      }
    }
  }
}

// A panel times a tile of rows; `rows` of them are stored.
template <GgmlType kType, int kRows, bool kVnni>
HWY_NOINLINE void Product(const QuantizedGroup* tile, const BlockRows& weight, int64_t panel,
                          const Output& output, int64_t row, int64_t rows, int64_t channel) {
  constexpr IntegerForm kForm = FormOf(kType);
  constexpr size_t kBytes = NumberBytes(kForm);
  constexpr int kBlock = std::min(kRows, RowsAtOnce<ProductBits(kForm), kVnni>());
  const size_t num_groups = weight.num_groups();
  Floats sums[kRows][kPanelVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kPanelVectors; ++v) sums[r][v] = hn::Zero(Float());
  }
  const QuantizedGroup* x = tile;
  const uint8_t* numbers = weight.numbers(panel);
  for (size_t g = 0; g < num_groups; ++g, x += kRows, numbers += kBytes) {
    PrefetchGroup<kType>(weight, panel, g + kPrefetchBytes / kBytes);
    // Where variables are given zeros first, these would cost as much as the product.
    __attribute__((uninitialized)) GroupScales scales[kPanelVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kPanelVectors; ++v) {
      LoadScales<kType>(weight.units(panel), weight.factors(panel), g, v * kLanes, scales[v]);
    }
    if constexpr (kRows == kBlock) {
      AddGroup<kType, kVnni, kBlock>(StoredNumbers<StoredAs(kForm)>{numbers}, scales, x, sums);
    } else {
      __attribute__((uninitialized)) UnpackedNumbers<StoredAs(kForm)> u;
      u.Unpack(numbers);
      if constexpr (kPanelVectors == 1) {
#pragma GCC unroll 16
        for (int r = 0; r < kRows; r += kBlock) {
          AddGroup<kType, kVnni, kBlock>(u, scales, x + r, sums + r);
        }
      } else {
#pragma GCC unroll 1
        for (int r = 0; r < kRows; r += kBlock) {
          AddGroup<kType, kVnni, kBlock>(u, scales, x + r, sums + r);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if (r == rows) break;
#pragma GCC unroll 4
    for (size_t v = 0; v < kPanelVectors; ++v) {
      StoreColumns(sums[r][v], output, row + r, channel + static_cast<int64_t>(v * kLanes));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
