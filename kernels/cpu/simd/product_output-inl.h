// Where the sums of a product go: added to what stands there if the op asks for it, and cut at the
// last channel.
//
// Included once per target (Highway's foreach_target).

#if defined(ETA_KERNELS_CPU_PRODUCT_OUTPUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_PRODUCT_OUTPUT_INL_H_
#undef ETA_KERNELS_CPU_PRODUCT_OUTPUT_INL_H_
#else
#define ETA_KERNELS_CPU_PRODUCT_OUTPUT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/tensor_view.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

struct Output {
  TensorView out;
  bool accumulate;
};

HWY_INLINE Floats Finish(Floats sum, const Output& output, const float* old) {
  return output.accumulate ? hn::Add(sum, hn::LoadU(Float(), old)) : sum;
}

// Stores channels [channel, channel + L) of one row and drops channels from N on.
HWY_INLINE void StoreColumns(Floats sum, const Output& output, int64_t row, int64_t channel) {
  const Float d;
  const int64_t valid = output.out.cols - channel;
  float* to = output.out.row(row) + channel;
  if (HWY_LIKELY(valid >= static_cast<int64_t>(kLanes))) {
    hn::StoreU(Finish(sum, output, to), d, to);
  } else if (valid > 0) {
    HWY_ALIGN float edge[kLanes] = {};
    std::memcpy(edge, to, static_cast<size_t>(valid) * sizeof(float));
    hn::Store(Finish(sum, output, edge), d, edge);
    std::memcpy(to, edge, static_cast<size_t>(valid) * sizeof(float));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
