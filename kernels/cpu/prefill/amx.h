// The ops of prefill rows on AMX tiles. REQUIRES: Context::amx. A result is off by less than 1e-5
// of its operands' norms, and does not depend on the other rows.
#pragma once

#include "kernels/cpu/context.h"
#include "kernels/params.h"

namespace eta::cpu {

// Every row of `params`, which are prefill rows of the step.
void AmxMatMul(const Context& context, const MatMulParams& params);

// REQUIRES: a cache of 16 bits.
void AmxPrefillAttention(const Context& context, const AttentionParams& params);

}  // namespace eta::cpu
