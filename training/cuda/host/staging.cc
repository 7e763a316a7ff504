#include "training/cuda/host/staging.h"

#include <cstring>
#include <utility>

namespace eta::training::cuda {
namespace {

constexpr size_t kBoundary = 256;

size_t RoundUp(size_t bytes) {
  return (bytes + kBoundary - 1) / kBoundary * kBoundary;
}

}  // namespace

Staging::~Staging() {
  context_.device.MakeCurrent();
  for (Half& half : halves_) {
    if (half.copied != nullptr) cudaEventDestroy(half.copied);
    if (half.data != nullptr) cudaFreeHost(half.data);
  }
}

size_t Staging::Offset(std::span<const std::span<const std::byte>> pieces, size_t index) {
  size_t offset = 0;
  for (const auto& piece : pieces.first(index)) offset += RoundUp(piece.size());
  return offset;
}

std::byte* Staging::Upload(std::span<const std::span<const std::byte>> pieces) {
  eta::cuda::Device& device = context_.device;
  const size_t bytes = Offset(pieces, pieces.size());
  auto* to = static_cast<std::byte*>(context_.workspace.Get(Workspace::Use::kHost, bytes));
  if (to == nullptr) return nullptr;
  Half& half = halves_[std::exchange(next_, 1 - next_)];
  if (half.copied == nullptr) {
    device.Check(cudaEventCreateWithFlags(&half.copied, cudaEventDisableTiming), "upload");
  } else {
    device.Check(cudaEventSynchronize(half.copied), "upload");
  }
  if (bytes > half.bytes) {
    device.Check(cudaFreeHost(std::exchange(half.data, nullptr)), "upload");
    half.bytes = 0;
    device.Check(cudaMallocHost(&half.data, 2 * bytes), "upload");
    if (half.data == nullptr) return nullptr;
    half.bytes = 2 * bytes;
  }
  size_t offset = 0;
  for (const auto& piece : pieces) {
    if (!piece.empty()) {
      std::memcpy(static_cast<std::byte*>(half.data) + offset, piece.data(), piece.size());
    }
    offset += RoundUp(piece.size());
  }
  device.Check(cudaMemcpyAsync(to, half.data, bytes, cudaMemcpyHostToDevice, device.stream()),
               "upload");
  device.Check(cudaEventRecord(half.copied, device.stream()), "upload");
  return to;
}

}  // namespace eta::training::cuda
