// How every kernel of this backend is launched, and how each of them begins.
//
// On sm_90 a kernel may start while its predecessor still runs (programmatic dependent launch). It
// calls WaitForPrevious() before it touches memory that the predecessor may still write or read,
// and AllowNext() only after that. So a kernel may read before the wait what was complete before
// its predecessor began. This hides most of a launch's latency, also inside graphs.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "kernels/cuda/host/device.h"

namespace eta::cuda {

__device__ __forceinline__ void WaitForPrevious() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void AllowNext() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Thread blocks of `each` that cover `count`.
inline int64_t CeilDiv(int64_t count, int64_t each) {
  return (count + each - 1) / each;
}

// Whether CTAs can form clusters on the device, in this build.
inline bool HasClusters([[maybe_unused]] const Device& device) {
#ifdef ETA_CUDA_SM90A
  return device.compute_capability() == 90;
#else
  return false;
#endif
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // dynamic; the launcher asks for more than 48 KB with static memory
  unsigned cluster = 1;     // neighbours along x that form a cluster; divides grid.x
};

// Lets the kernel have such dynamic shared memory.
template <typename... Params>
cudaError_t AllowSharedBytes(size_t bytes, void (*kernel)(Params...)) {
  constexpr size_t kAlwaysThere = 16u << 10;  // beside any kernel's static memory
  if (bytes <= kAlwaysThere) return cudaSuccess;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

// How many clusters of this shape the device holds at once, where nothing else runs on it; 0: it
// has none such. Asked once for every size of a cluster.
template <typename... Params>
int RoomForClusters(Device& device, const LaunchShape& shape, void (*kernel)(Params...)) {
  std::optional<int>& room =
      device.cluster_room(reinterpret_cast<const void*>(kernel), shape.cluster);
  if (room) return *room;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  if (AllowSharedBytes(shape.shared_bytes, kernel) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
    clusters = 0;
    cudaGetLastError();  // otherwise the next launch would report the error
  }
  room = clusters;
  return clusters;
}

template <typename... Params, typename... Args>
void Launch(Device& device, const char* what, const LaunchShape& shape, void (*kernel)(Params...),
            Args&&... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  device.Check(AllowSharedBytes(shape.shared_bytes, kernel), what);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = device.stream();
  config.attrs = attributes;
#ifdef ETA_CUDA_SM90A
  // Other devices run the code for sm_80, whose kernels do not wait for their predecessors.
  if (device.compute_capability() == 90) config.numAttrs = shape.cluster > 1 ? 2 : 1;
#endif
  device.Check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), what);
}

}  // namespace eta::cuda
