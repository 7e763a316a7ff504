#include "training/cuda/attention/tensor_map.h"

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eta::training::cuda {
namespace {

// The driver's function by way of the runtime, so that no program links libcuda.
absl::StatusOr<decltype(&cuTensorMapEncodeTiled)> LoadEncoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::UnavailableError("backend: cuda: the driver has no cuTensorMapEncodeTiled");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

absl::StatusOr<CUtensorMap> MapHeads(const Tensor& tensor, int32_t sequences, int32_t tokens,
                                     int32_t head_dim) {
  if (tensor.dtype != DType::kBFloat16 || tensor.stride % 8 != 0 ||
      reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0) {
    return absl::InvalidArgumentError(
        "backend: cuda: attention takes bfloat16 rows that begin on 16 bytes");
  }
  const auto heads = static_cast<int32_t>(tensor.cols / head_dim);
  static const absl::StatusOr<decltype(&cuTensorMapEncodeTiled)> encode = LoadEncoder();
  if (!encode.ok()) return encode.status();
  const auto size = [](int32_t value) { return static_cast<cuuint64_t>(value); };
  const auto token_bytes = static_cast<cuuint64_t>(tensor.stride) * 2;
  const cuuint64_t sizes[4] = {size(head_dim), size(heads), size(tokens), size(sequences)};
  const cuuint64_t strides[3] = {size(head_dim) * 2, token_bytes, token_bytes * size(tokens)};
  const cuuint32_t box[4] = {64, 1, 64, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      (*encode)(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, tensor.data, sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return absl::InternalError(absl::StrCat("backend: cuda: tensor map of [", sequences, ", ",
                                            tokens, ", ", heads, ", ", head_dim, "]: error ",
                                            static_cast<int>(result)));
  }
  return map;
}

}  // namespace eta::training::cuda
