// Prompt rows over the 8-bit cache. K and V [T, HKV, d] of their sequences in one layer become
// float16 tiles in scratch memory, laid out as a 16-bit cache (eta-semantics.md, "8-bit cache").
// The kernels for 16 bits then attend to these. What float16 can hold stays as it is; larger values
// saturate. This costs little beside attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/host/step_view.h"
#include "kernels/kv_geometry.h"

namespace eta::cuda {

// Most bytes of 16-bit tiles at a time, unless a single sequence needs more.
inline constexpr size_t kMaxWideBytes = size_t{256} << 20;

// The most bytes that Widen() takes for a layer of the cache, for sequences of up to `context`
// tokens; 0 with 16 bits.
size_t WideBytes(const KvGeometry& geometry, int64_t context);

// Returns the next prefill sequences of `rest` that are neighbours and whose tiles fit together,
// and removes everything up to their end from `rest`. Empty if there are none left.
std::span<const StepSequence> TakeWideRun(const KvGeometry& geometry,
                                          std::span<const StepSequence>& rest);

// One layer's keys and values of some sequences, in device memory.
struct WideTiles {
  KvGeometry geometry;               // of 16 bits
  const std::byte* tiles = nullptr;  // null: no memory
  const int32_t* tables = nullptr;   // the sequences' block tables, one after the other
};
// Widens the keys and values of `sequences`, as TakeWideRun returns them, from the first window on
// in a layer with a window (0: none). The next call uses the same memory.
WideTiles Widen(Context& context, const KvGeometry& geometry, const KvLayerView& kv, int32_t window,
                std::span<const StepSequence> sequences);

}  // namespace eta::cuda
