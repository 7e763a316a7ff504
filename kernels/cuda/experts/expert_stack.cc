// StackExperts: the matrices of a layer's experts become one piece of memory, packed ones as the
// numbers that they stand for.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/packed/unpack_weight.h"

namespace eta::cuda {

absl::StatusOr<std::unique_ptr<ExpertStack>> StackExperts(
    Backend& backend, Device& device, std::vector<std::unique_ptr<Matrix>> matrices) {
  const auto weight_of = [](const std::unique_ptr<Matrix>& matrix) {
    return static_cast<const DeviceMatrix&>(*matrix).weight();
  };
  const auto there = std::ranges::find_if(matrices, [](const auto& m) { return m != nullptr; });
  if (there == matrices.end()) return absl::InvalidArgumentError("experts: no matrix");
  const Weight first = weight_of(*there);
  const size_t bytes = static_cast<size_t>(first.rows * first.cols) * SizeOf(first.dtype);
  auto buffer = backend.Allocate(matrices.size() * bytes);
  if (!buffer.ok()) return buffer.status();
  std::byte* to = (*buffer)->data();
  for (std::unique_ptr<Matrix>& matrix : matrices) {
    if (matrix) {
      const Weight weight = weight_of(matrix);
      if (weight.dtype != first.dtype || weight.rows != first.rows || weight.cols != first.cols) {
        return absl::InvalidArgumentError("experts: matrices of several shapes");
      }
      if (weight.packed()) {
        UnpackWeight(device, weight, to);
      } else {
        device.Check(
            cudaMemcpyAsync(to, weight.data, bytes, cudaMemcpyDeviceToDevice, device.stream()),
            "stack of experts");
      }
    }
    to += bytes;
  }
  device.Check(cudaStreamSynchronize(device.stream()), "stack of experts");
  if (!device.status().ok()) return device.status();
  const ExpertWeights weights = {(*buffer)->data(), first.dtype,
                                 static_cast<int32_t>(matrices.size()), first.rows, first.cols};
  return std::make_unique<DeviceExpertStack>(*std::move(buffer), weights);
}

}  // namespace eta::cuda
