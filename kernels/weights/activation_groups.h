// Activations as the products of packed weights take them: 8 bits (eta-semantics.md, "Packed
// weights").
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/weights/integer_groups.h"

namespace eta {

// A group whose scale would be below this counts as zeros. So no product leaves the normal numbers,
// and a thread that flushes the others has the same bits.
inline constexpr float kLeastActivationScale = 0x1p-100f;

struct ActivationGroup {
  std::array<int8_t, kGroupNumbers> x;  // x_i = scale * x[i], nearly
  float scale;                          // NaN: an activation is NaN or infinite; then x is zero
  float scaled_sum;                     // scale * (the sum of x), rounded to float32
  std::array<int32_t, 2> sum;           // of x, of the two halves
};

// The plain form. REQUIRES: 1 to 32 activations; zeros stand for the rest.
ActivationGroup QuantizeActivations(std::span<const float> activations);

}  // namespace eta
