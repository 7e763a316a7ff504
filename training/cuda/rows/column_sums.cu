#include "training/cuda/rows/column_sums.cuh"

namespace eta::training::cuda {

__global__ void __launch_bounds__(kThreads)
    AddChunks(const float* partial, int32_t chunks, int64_t cols, int64_t period, float* out) {
  Begin();
  const int64_t i = ThreadIndex();
  if (i >= period) return;
  float sum = 0.0f;
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t col = i; col < cols; col += period) sum += partial[chunk * cols + col];
  }
  out[i] += sum;
}

}  // namespace eta::training::cuda
