// Randomness as a function: the draw for output token `index` of a request depends on its seed and
// that index alone, so neither batching nor preemption can change a text.
#pragma once

#include <array>
#include <cstdint>

namespace eta {

// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform in [0, 1), 53 bits.
double UniformDraw(uint64_t seed, uint64_t index);

}  // namespace eta
