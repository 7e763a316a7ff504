// Matrix products of a warpgroup on sm_90a (PTX wgmma): four warps multiply 64 rows by 64 columns,
// or 32, in shared memory. Each warp holds 16 of the rows in registers, as in m16n8k16 (mma.cuh).
// The products run beside the threads. Neither a product's sums nor its A registers may be touched
// until Wait() says that it has finished.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/mma.cuh"

namespace eta::cuda::wgmma {

// Call it after writing registers or shared memory that the next product reads.
__device__ __forceinline__ void Fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes a group of products.
__device__ __forceinline__ void Commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending of the latest groups still run.
template <int kPending>
__device__ __forceinline__ void Wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of a product's sums across the waits around the product.
template <int kColumns>
__device__ __forceinline__ void Pin(float (&c)[kColumns][4]) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
  }
}

// Describes rows of 128 bytes in shared memory, 64 or as many as a product has columns, 1024-byte
// aligned, whose 16-byte chunks are swizzled by the row's low three bits. A row is a column of B
// ([n][k], keys). Transposed, it is one step of the inner dimension ([k][n], values). The next 16
// inner elements are at + kInnerStep or + kInnerStepTransposed.
__device__ __forceinline__ uint64_t Describe(uint32_t shared) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  constexpr uint64_t kGroupStride = static_cast<uint64_t>(1024 >> 4) << 32;  // of eight rows
  constexpr uint64_t kLeadingStride = 1ull << 16;  // one group wide: unused
  return kSwizzle128 | kGroupStride | kLeadingStride | ((shared & 0x3ffff) >> 4);
}
inline constexpr uint64_t kInnerStep = 32 >> 4;
inline constexpr uint64_t kInnerStepTransposed = 16 * 128 >> 4;

// The sums of a product, and their places in its instruction.
#define ETA_WGMMA_ROW(CONSTRAINT, N) \
  CONSTRAINT(c[N][0]), CONSTRAINT(c[N][1]), CONSTRAINT(c[N][2]), CONSTRAINT(c[N][3])
#define ETA_WGMMA_SUMS(CONSTRAINT)                                                              \
  ETA_WGMMA_ROW(CONSTRAINT, 0), ETA_WGMMA_ROW(CONSTRAINT, 1), ETA_WGMMA_ROW(CONSTRAINT, 2),     \
      ETA_WGMMA_ROW(CONSTRAINT, 3), ETA_WGMMA_ROW(CONSTRAINT, 4), ETA_WGMMA_ROW(CONSTRAINT, 5), \
      ETA_WGMMA_ROW(CONSTRAINT, 6), ETA_WGMMA_ROW(CONSTRAINT, 7)
// FACTORS: the text of A, B and of the layouts of A and B. The remaining arguments are the operands
// in this order.
#define ETA_WGMMA(TYPE, ADD, CONSTRAINT, FACTORS, ...)                                          \
  asm volatile(                                                                                 \
      "{ .reg .pred add;\n"                                                                     \
      "setp.ne.b32 add, " ADD                                                                   \
      ", 0;\n"                                                                                  \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                               \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " FACTORS "; }"        \
      : ETA_WGMMA_SUMS(CONSTRAINT)                                                              \
      : __VA_ARGS__)
// Of 32 columns, added to or in the place of what c holds.
#define ETA_WGMMA_NARROW(TYPE, ADD, ...)                                          \
  asm volatile(                                                                   \
      "{ .reg .pred add;\n"                                                       \
      "setp.ne.b32 add, " ADD                                                     \
      ", 0;\n"                                                                    \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE                 \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, " \
      "{%16, %17, %18, %19}, %20, add, 1, 1, 0; }"                                \
      : ETA_WGMMA_ROW("+f", 0), ETA_WGMMA_ROW("+f", 1), ETA_WGMMA_ROW("+f", 2),   \
        ETA_WGMMA_ROW("+f", 3)                                                    \
      : __VA_ARGS__)
// Overwriting and adding products are separate instructions for the compiler: with the first kind
// the old value of c is dead.
#define ETA_WGMMA_EITHER(...)                                   \
  if constexpr (std::is_same_v<Element, Half> && kAccumulate) { \
    ETA_WGMMA("f16", "1", "+f", __VA_ARGS__);                   \
  } else if constexpr (std::is_same_v<Element, Half>) {         \
    ETA_WGMMA("f16", "0", "=f", __VA_ARGS__);                   \
  } else if constexpr (kAccumulate) {                           \
    ETA_WGMMA("bf16", "1", "+f", __VA_ARGS__);                  \
  } else {                                                      \
    ETA_WGMMA("bf16", "0", "=f", __VA_ARGS__);                  \
  }

// c = a * B (overwriting) or c += a * B over 16 inner elements. c[n] is as in Mma(), of the warp's
// 16 rows.
template <typename Element, bool kTransposed, bool kAccumulate>
__device__ __forceinline__ void Multiply(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b) {
  ETA_WGMMA_EITHER("{%32, %33, %34, %35}, %36, add, 1, 1, %37", "r"(a[0]), "r"(a[1]), "r"(a[2]),
                   "r"(a[3]), "l"(b), "n"(kTransposed ? 1 : 0))
}

// The same of rows that are not transposed, where c keeps its registers even if it is overwritten:
// for the compiler its old value is not dead.
template <typename Element, bool kAccumulate>
__device__ __forceinline__ void MultiplyInPlace(float (&c)[8][4], const uint32_t (&a)[4],
                                                uint64_t b) {
  if constexpr (std::is_same_v<Element, Half>) {
    ETA_WGMMA("f16", "%37", "+f", "{%32, %33, %34, %35}, %36, add, 1, 1, 0", "r"(a[0]), "r"(a[1]),
              "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAccumulate ? 1 : 0));
  } else {
    ETA_WGMMA("bf16", "%37", "+f", "{%32, %33, %34, %35}, %36, add, 1, 1, 0", "r"(a[0]), "r"(a[1]),
              "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAccumulate ? 1 : 0));
  }
}

// The same with 32 columns.
template <typename Element, bool kAccumulate>
__device__ __forceinline__ void MultiplyInPlace(float (&c)[4][4], const uint32_t (&a)[4],
                                                uint64_t b) {
  if constexpr (std::is_same_v<Element, Half>) {
    ETA_WGMMA_NARROW("f16", "%21", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                     "n"(kAccumulate ? 1 : 0));
  } else {
    ETA_WGMMA_NARROW("bf16", "%21", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                     "n"(kAccumulate ? 1 : 0));
  }
}

// The same product with A in shared memory too: 64 rows as Describe() has them.
template <typename Element, bool kAccumulate>
__device__ __forceinline__ void MultiplyShared(float (&c)[8][4], uint64_t a, uint64_t b) {
  ETA_WGMMA_EITHER("%32, %33, add, 1, 1, 0, 0", "l"(a), "l"(b))
}
#undef ETA_WGMMA_EITHER
#undef ETA_WGMMA_NARROW
#undef ETA_WGMMA
#undef ETA_WGMMA_SUMS
#undef ETA_WGMMA_ROW

// Writes a warp's 16 rows (as A operands) to `rows`, in the arrangement that Describe() has.
__device__ __forceinline__ void WriteRows(std::byte* rows, int32_t first_row,
                                          const uint32_t (&a)[4][4]) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const int32_t row = first_row + threadIdx.x % 32 / 4 + j % 2 * 8;
    const int32_t chunk = j / 2 ^ (row & 7);
    *reinterpret_cast<uint32_t*>(rows + row * 128 + chunk * 16 + threadIdx.x % 4 * 4) =
        a[j / 4][j % 4];
  }
}

// Makes the threads' own writes to shared memory visible to products.
__device__ __forceinline__ void PublishWrites() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace eta::cuda::wgmma
