// Cuts the lists of sparse prefill into parts, the work of one CTA of attention each. Heads of a
// layer differ much in what they attend to, so one long list may take as long as all others
// together. Lists longer than a CTA's fair share are cut, and the longest parts begin first.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/prefill/admitted_tiles.h"

namespace eta::cuda {

inline constexpr int kListThreads = 256;
inline constexpr int kListWarps = kListThreads / 32;

// How a list of some key tiles is cut, and the bin of its parts: parts are sorted by length into
// 32 bins.
struct ListCutter {
  int32_t part_tiles;

  __device__ __forceinline__ int32_t Parts(int32_t key_tiles) const {
    return key_tiles < 2 * part_tiles ? 1 : key_tiles / part_tiles;
  }
  __device__ __forceinline__ int32_t Bin(int32_t key_tiles) const {
    return 31 - key_tiles / Parts(key_tiles) * 32 / (2 * part_tiles);
  }
};

// Plans the parts of `num_lists` lists. All threads of the CTA call it.
__device__ __forceinline__ void CutLists(const AdmittedTiles& to, int32_t num_lists) {
  __shared__ int32_t of_warps[kListWarps];
  __shared__ int32_t bins[32];  // the parts in a bin, then the place of its next one
  __shared__ int32_t results;
  __shared__ int32_t cut_lists;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  int32_t own = 0;
#pragma unroll 4
  for (int32_t i = thread; i < num_lists; i += kListThreads) own += to.lists[i].key_tiles;
  own = __reduce_add_sync(~0u, own);
  if (thread % 32 == 0) of_warps[thread / 32] = own;
  if (thread < 32) bins[thread] = 0;
  if (thread == 0) results = cut_lists = 0;
  __syncthreads();
  int32_t all = 0;
  for (int i = 0; i < kListWarps; ++i) all += of_warps[i];
  // Rounded up: then long lists have no more parts than this.
  const int32_t shares = kSharesOfSlot * to.slots;
  const ListCutter cutter = {max(kMinPartTiles, (all + shares - 1) / shares)};
#pragma unroll 4
  for (int32_t i = thread; i < num_lists; i += kListThreads) {
    const int32_t key_tiles = to.lists[i].key_tiles;
    atomicAdd(bins + cutter.Bin(key_tiles), cutter.Parts(key_tiles));
  }
  __syncthreads();
  if (thread < 32) {
    const int32_t count = bins[thread];
    int32_t end = count;
    for (int32_t step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(~0u, end, step);
      if (thread >= step) end += before;
    }
    bins[thread] = end - count;
    if (thread == 31) to.plan->parts = static_cast<uint32_t>(end);
  }
  __syncthreads();
  for (int32_t i = thread; i < num_lists; i += kListThreads) {
    const int32_t key_tiles = to.lists[i].key_tiles;
    const int32_t parts = cutter.Parts(key_tiles);
    to.lists[i].parts = parts;
    if (parts > 1) {
      to.lists[i].results = atomicAdd(&results, parts);
      to.cuts[atomicAdd(&cut_lists, 1)] = i;
    }
    const int32_t place = atomicAdd(bins + cutter.Bin(key_tiles), parts);
    for (int32_t part = 0; part < parts; ++part) to.parts[place + part] = {i, part};
  }
  __syncthreads();
  if (thread == 0) to.plan->cut_lists = static_cast<uint32_t>(cut_lists);
}

// Every CTA that made a list calls it, and the last one plans.
__device__ __forceinline__ void PlanParts(const AdmittedTiles& to, int32_t num_lists) {
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicAdd(&to.plan->lists_made, 1u) == static_cast<uint32_t>(num_lists) - 1;
    __threadfence();
  }
  __syncthreads();
  if (is_last) CutLists(to, num_lists);
}

}  // namespace eta::cuda
