// Prompt rows over the 8-bit cache: their sequences' K and V of the layer become float16 tiles in
// scratch memory, laid out as a 16-bit cache is, and the kernels for those attend to them. What
// float16 can hold stays as it is; larger values saturate. Beside attention it costs little: 2048
// rows of 32 heads take some 60 ns a key, widening a key of 4 KV heads less than 1 ns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/host/step_view.h"
#include "kernels/params.h"

namespace eta::cuda {

// Of 16-bit tiles at a time, unless one sequence has more.
inline constexpr size_t kMaxWideBytes = size_t{256} << 20;

// The most that Widen() takes of a cache's layer, for sequences of up to `context` tokens; 0 with
// 16 bits.
size_t WideBytes(const KvGeometry& geometry, int64_t context);

// Takes from `rest` everything up to the end of the next prefill sequences that are neighbours and
// whose tiles fit together, and returns these; empty if there are none left.
std::span<const StepSequence> TakeWideRun(const KvGeometry& geometry,
                                          std::span<const StepSequence>& rest);

// One layer's keys and values of some sequences, device memory.
struct WideTiles {
  KvGeometry geometry;               // of 16 bits
  const std::byte* tiles = nullptr;  // null: there is no memory
  const int32_t* tables = nullptr;   // the sequences' block tables, one behind the other
};
// `sequences`: as TakeWideRun gives them. The memory is the next call's too.
WideTiles Widen(Context& context, const KvGeometry& geometry, const KvLayerView& kv,
                std::span<const StepSequence> sequences);

}  // namespace eta::cuda
