#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/bench/read_bandwidth.h"

namespace eta::bench {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;  // 16-byte loads of a thread in each tile
constexpr int kWarmUp = 2;
constexpr int kPasses = 12;  // warm-up included

// Each thread block reads tiles of kThreads * kLoads * 16 bytes (64 KB), `gridDim.x` tiles apart.
// The store never happens; it keeps the compiler from dropping the loads.
__global__ void __launch_bounds__(kThreads)
    Read(const uint4* __restrict__ from, size_t tiles, uint32_t* sink) {
  uint32_t bits = 0;
  for (size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const uint4* at = from + tile * (kThreads * kLoads) + threadIdx.x;
    uint4 values[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) values[i] = __ldcs(at + i * kThreads);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) bits ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
  }
  if (bits == 0x9E3779B9u) *sink = bits;
}

// Keeps the first error.
class Errors {
 public:
  void Check(cudaError_t error, const char* what) {
    if (error == cudaSuccess || what_ != nullptr) return;
    error_ = error;
    what_ = what;
  }
  bool none() const { return what_ == nullptr; }
  std::string message() const {
    return std::string("read bandwidth: ") + what_ + ": " + cudaGetErrorString(error_);
  }

 private:
  cudaError_t error_ = cudaSuccess;
  const char* what_ = nullptr;
};

// Frees its memory.
struct Resources {
  ~Resources() {
    cudaFree(data);
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
  }
  void* data = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
};

}  // namespace

absl::StatusOr<double> DeviceReadBandwidth(int device, size_t bytes) {
  Errors errors;
  Resources held;
  int sms = 0;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  errors.Check(cudaSetDevice(device), "device");
  errors.Check(cudaMemGetInfo(&free_bytes, &total_bytes), "memory");
  errors.Check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "device");
  constexpr size_t kTile = size_t{kThreads} * kLoads * sizeof(uint4);
  const size_t tiles = std::max<size_t>(1, std::min(bytes, free_bytes / 2) / kTile);
  if (errors.none()) {
    errors.Check(cudaMalloc(&held.data, tiles * kTile + sizeof(uint4)), "memory");
  }
  if (errors.none()) errors.Check(cudaMemset(held.data, 1, tiles * kTile), "memory");
  if (errors.none()) errors.Check(cudaEventCreate(&held.begin), "event");
  if (errors.none()) errors.Check(cudaEventCreate(&held.end), "event");
  auto* sink = reinterpret_cast<uint32_t*>(static_cast<std::byte*>(held.data) + tiles * kTile);
  std::vector<double> seconds;
  for (int pass = 0; pass < kPasses && errors.none(); ++pass) {
    errors.Check(cudaEventRecord(held.begin), "event");
    Read<<<static_cast<unsigned>(sms) * 4, kThreads>>>(static_cast<const uint4*>(held.data), tiles,
                                                       sink);
    errors.Check(cudaGetLastError(), "launch");
    errors.Check(cudaEventRecord(held.end), "event");
    errors.Check(cudaEventSynchronize(held.end), "read");
    float milliseconds = 0.0f;
    errors.Check(cudaEventElapsedTime(&milliseconds, held.begin, held.end), "time");
    if (pass >= kWarmUp) seconds.push_back(milliseconds * 1e-3);
  }
  if (!errors.none()) return absl::UnavailableError(errors.message());
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return static_cast<double>(tiles * kTile) / seconds[seconds.size() / 2];
}

}  // namespace eta::bench
