// Elements of the KV cache and of its records, and float16 weights, as float32 vectors, for the
// target that is being compiled. Loads widen exactly; stores round to nearest even. SIMD sources
// include this file after "hwy/foreach_target.h"; it is read once per target.
#if defined(ETA_KERNELS_CPU_KV_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_KV_ELEMENTS_INL_H_
#undef ETA_KERNELS_CPU_KV_ELEMENTS_INL_H_
#else
#define ETA_KERNELS_CPU_KV_ELEMENTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// One type per format of the cache. `Stored` is the type of an element in memory.
struct Float32Elements {
  using Stored = float;
};
struct Float16Elements {
  using Stored = uint16_t;
};
struct BFloat16Elements {
  using Stored = uint16_t;
};

template <class D>
HWY_INLINE hn::Vec<D> LoadElements(Float32Elements, D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadElements(Float16Elements, D d, const uint16_t* from) {
  const hn::Rebind<uint16_t, D> du16;
  const hn::Rebind<hwy::float16_t, D> df16;
  const auto value = hn::PromoteTo(d, hn::BitCast(df16, hn::LoadU(du16, from)));
#if HWY_TARGET == HWY_SSSE3
  // Highway's own conversion makes finite numbers of infinity and NaN, from 65536 on.
  const auto special = hn::Ge(hn::Abs(value), hn::Set(d, 65536.0f));
  const auto infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  return hn::Or(value, hn::IfThenElseZero(special, infinity));
#else
  return value;
#endif
}

template <class D>
HWY_INLINE hn::Vec<D> LoadElements(BFloat16Elements, D d, const uint16_t* from) {
  const hn::Rebind<uint16_t, D> du16;
  const hn::Rebind<uint32_t, D> du32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, from))));
}

// A vector of int8 or uint8 values.
template <class D, class Byte>
HWY_INLINE hn::Vec<D> LoadBytes(D df, const Byte* from) {
  const hn::Rebind<Byte, D> d8;
  const hn::RebindToSigned<D> di;
  return hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(d8, from)));
}

template <class D>
HWY_INLINE void StoreElements(Float32Elements, D d, hn::Vec<D> v, float* to) {
  hn::StoreU(v, d, to);
}

template <class D>
HWY_INLINE void StoreElements(Float16Elements, D d, hn::Vec<D> v, uint16_t* to) {
#if HWY_TARGET == HWY_SSSE3
  // Highway's own conversion truncates on instruction sets that have none.
  alignas(16) float lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) to[i] = FloatToHalf(lanes[i]);
#else
  const hn::Rebind<uint16_t, D> du16;
  const hn::Rebind<hwy::float16_t, D> df16;
  hn::StoreU(hn::BitCast(du16, hn::DemoteTo(df16, v)), du16, to);
#endif
}

template <class D>
HWY_INLINE void StoreElements(BFloat16Elements, D, hn::Vec<D> v, uint16_t* to) {
  const hn::Rebind<uint32_t, D> du32;
  const hn::Rebind<int32_t, D> di32;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::BitCast(du32, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du32, 0x7FFF))));
  const auto quiet = hn::Or(upper, hn::Set(du32, 0x40));
  const auto result = hn::IfThenElse(hn::RebindMask(du32, hn::IsNaN(v)), quiet, rounded);
  // All values are below 2^16, so the signed saturation of the conversion never acts.
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di32, result)), du16, to);
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
