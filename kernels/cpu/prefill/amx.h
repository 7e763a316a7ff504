// The ops of prefill rows on AMX tiles. REQUIRES: Context::amx. A result is off by less than 1e-5
// of its operands' norms, and does not depend on the other rows.
#pragma once

#include <cstdlib>

#include "hwy/detect_targets.h"
#include "kernels/cpu/context.h"
#include "kernels/params/layer.h"
#include "kernels/params/selection.h"

namespace eta::cpu {

#if HWY_ARCH_X86_64 && (HWY_TARGETS & HWY_AVX3)

// Every row of `params`, which are prefill rows of the step. REQUIRES: the weight is a
// PanelMatrix.
void AmxMatMul(const Context& context, const MatMulParams& params);

// REQUIRES: a cache of 16 bits.
void AmxPrefillAttention(const Context& context, const AttentionParams& params);

#else  // this build has no AMX, and Context::amx is false

inline void AmxMatMul(const Context& /*context*/, const MatMulParams& /*params*/) {
  std::abort();
}
inline void AmxPrefillAttention(const Context& /*context*/, const AttentionParams& /*params*/) {
  std::abort();
}

#endif

}  // namespace eta::cpu
