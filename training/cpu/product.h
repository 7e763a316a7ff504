// Products of float32 matrices by OpenBLAS. Tiles of one size, whatever the number of threads is,
// are computed by one thread each, so that threads change no bit.
#pragma once

#include <cstdint>

#include "kernels/cpu/workers.h"

namespace eta::training::cpu {

enum class Transposed : bool { kNo, kYes };

// A matrix as it lies in memory: rows `stride` elements apart.
struct Operand {
  const float* data;
  int64_t stride;
  Transposed transposed = Transposed::kNo;
};

// out [rows, cols] = factor * a b + (accumulate ? out : 0), summed over `depth`, on the calling
// thread. From any number of threads at a time.
void Multiply(int64_t rows, int64_t cols, int64_t depth, float factor, const Operand& a,
              const Operand& b, bool accumulate, float* out, int64_t out_stride);

// The same on all threads.
void MultiplyOnAll(eta::cpu::Workers& workers, int64_t rows, int64_t cols, int64_t depth,
                   const Operand& a, const Operand& b, bool accumulate, float* out,
                   int64_t out_stride);

}  // namespace eta::training::cpu
