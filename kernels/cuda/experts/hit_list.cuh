// The tasks of a product over the places of a choice, found on the device: a task is a tile of
// channels of one expert for a chunk of its places. Tasks of an expert are side by side, and those
// of a tile: its weights come from memory once.
#pragma once

#include <cstdint>

#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/experts.h"

namespace eta::cuda {

// An expert that has places.
struct HitExpert {
  int32_t task_end;  // behind its last task
  int32_t expert;
  int32_t place;  // its first
  int32_t count;  // of its places
};

// Bytes of shared memory for the list.
inline size_t HitListBytes(int32_t num_experts) {
  return static_cast<size_t>(num_experts) * sizeof(HitExpert);
}

// How tasks are cut.
struct TaskCut {
  int32_t tiles;   // of channels, of each expert
  int32_t places;  // of a chunk
};

// Writes the experts that have places, ascending, and returns how many they are. All of the thread
// block's 256 threads call it, and all may read the list afterwards.
__device__ __forceinline__ int32_t ListHits(const int32_t* place_end, int32_t num_experts,
                                            const TaskCut& cut, HitExpert* hits) {
  constexpr int32_t kThreads = 256;
  constexpr int32_t kEach = kMostExperts / kThreads;
  __shared__ unsigned long long of_warps[kThreads / 32];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t first = thread * kEach;
  int32_t ends[kEach + 1];
#pragma unroll
  for (int i = 0; i <= kEach; ++i) {
    const int32_t expert = min(first + i, num_experts) - 1;
    ends[i] = expert < 0 ? 0 : place_end[expert];
  }
  // Experts above, tasks below.
  unsigned long long mine = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int32_t count = ends[i + 1] - ends[i];
    if (count == 0) continue;
    const int32_t chunks = (count + cut.places - 1) / cut.places;
    mine += (1ull << 32) + static_cast<unsigned long long>(chunks * cut.tiles);
  }
  unsigned long long sum = mine;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const unsigned long long below = __shfl_up_sync(~0u, sum, lanes);
    if (thread % 32 >= lanes) sum += below;
  }
  if (thread % 32 == 31) of_warps[thread / 32] = sum;
  __syncthreads();
  unsigned long long all = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    if (warp == thread / 32) sum += all;
    all += of_warps[warp];
  }
  auto at = static_cast<int32_t>((sum - mine) >> 32);
  auto task = static_cast<int32_t>(sum - mine);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int32_t count = ends[i + 1] - ends[i];
    if (count == 0) continue;
    task += (count + cut.places - 1) / cut.places * cut.tiles;
    hits[at++] = {task, first + i, ends[i], count};
  }
  __syncthreads();
  return static_cast<int32_t>(all >> 32);
}

// The thread block's tasks in their order: every gridDim.x-th.
class TaskWalk {
 public:
  __device__ TaskWalk(const HitExpert* hits, int32_t num_hits, const TaskCut& cut)
      : hits_(hits), num_hits_(num_hits), cut_(cut), task_(static_cast<int32_t>(blockIdx.x)) {
    Find();
  }

  __device__ bool done() const { return hit_ >= num_hits_; }
  __device__ int32_t expert() const { return hits_[hit_].expert; }
  __device__ int32_t tile() const { return tile_; }
  __device__ int32_t place() const { return hits_[hit_].place + chunk_ * cut_.places; }
  __device__ int32_t count() const {
    return min(cut_.places, hits_[hit_].count - chunk_ * cut_.places);
  }
  // The row of x of the i-th place.
  __device__ int64_t row(const ExpertArgs& args, int32_t i) const {
    return args.rows != nullptr ? args.rows[place() + i] : place() + i;
  }
  __device__ bool ends_sum() const { return true; }
  __device__ void Advance() {
    task_ += static_cast<int32_t>(gridDim.x);
    Find();
  }

 private:
  __device__ void Find() {
    while (hit_ < num_hits_ && task_ >= hits_[hit_].task_end) ++hit_;
    if (done()) return;
    const int32_t begin = hit_ == 0 ? 0 : hits_[hit_ - 1].task_end;
    const int32_t chunks = (hits_[hit_].count + cut_.places - 1) / cut_.places;
    tile_ = (task_ - begin) / chunks;
    chunk_ = (task_ - begin) % chunks;
  }

  const HitExpert* hits_;
  int32_t num_hits_;
  TaskCut cut_;
  int32_t task_;
  int32_t hit_ = 0;
  int32_t tile_ = 0;
  int32_t chunk_ = 0;
};

}  // namespace eta::cuda
