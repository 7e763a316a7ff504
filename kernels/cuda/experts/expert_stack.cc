// StackExperts: the matrices of a layer's experts become one piece of memory, packed ones as they
// are or as the numbers that they stand for.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/packed/unpack_weight.h"

namespace eta::cuda {
namespace {

Weight WeightOf(const std::unique_ptr<Matrix>& matrix) {
  return static_cast<const DeviceMatrix&>(*matrix).weight();
}

// Whether the kernels have the parts of these matrices, and all have those of `first`.
bool KeepPacked(const std::vector<std::unique_ptr<Matrix>>& matrices, const Weight& first) {
  const bool narrow = std::ranges::all_of(
      first.parts, [](const WeightPart& part) { return part.type != PackedType::kSixteen; });
  return first.packed() && narrow && std::ranges::all_of(matrices, [&](const auto& matrix) {
           return matrix == nullptr || WeightOf(matrix).parts == first.parts;
         });
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertStack>> StackExperts(
    Backend& backend, Device& device, std::vector<std::unique_ptr<Matrix>> matrices,
    bool keeps_packed) {
  const auto there = std::ranges::find_if(matrices, [](const auto& m) { return m != nullptr; });
  if (there == matrices.end()) return absl::InvalidArgumentError("experts: no matrix");
  const Weight first = WeightOf(*there);
  Weight kept = first;
  if (!keeps_packed || !KeepPacked(matrices, first)) kept.parts = {};
  const auto bytes = static_cast<size_t>(kept.bytes());
  auto buffer = backend.Allocate(matrices.size() * bytes);
  if (!buffer.ok()) return buffer.status();
  std::byte* to = (*buffer)->data();
  for (std::unique_ptr<Matrix>& matrix : matrices) {
    if (matrix) {
      const Weight weight = WeightOf(matrix);
      if (weight.dtype != first.dtype || weight.rows != first.rows || weight.cols != first.cols) {
        return absl::InvalidArgumentError("experts: matrices of several shapes");
      }
      if (weight.packed() && !kept.packed()) {
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
  const ExpertWeights weights = {.data = (*buffer)->data(),
                                 .dtype = kept.dtype,
                                 .num_experts = static_cast<int32_t>(matrices.size()),
                                 .rows = kept.rows,
                                 .cols = kept.cols,
                                 .parts = kept.parts,
                                 .stride = kept.packed() ? kept.bytes() : 0};
  return std::make_unique<DeviceExpertStack>(*std::move(buffer), weights);
}

}  // namespace eta::cuda
