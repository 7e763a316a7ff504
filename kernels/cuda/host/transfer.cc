#include "kernels/cuda/host/transfer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace eta::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kLeastBytes = size_t{256} << 10;

size_t AlignUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The next power of two, at least kLeastBytes.
size_t Capacity(size_t bytes) {
  return std::bit_ceil(std::max(bytes, kLeastBytes));
}

}  // namespace

MirroredMemory::~MirroredMemory() {
  device_.MakeCurrent();
  cudaFreeHost(host_);
  cudaFree(device_data_);
}

void MirroredMemory::Reallocate(size_t bytes) {
  device_.MakeCurrent();
  device_.Check(cudaFreeHost(std::exchange(host_, nullptr)), "pinned memory");
  device_.Check(cudaFree(std::exchange(device_data_, nullptr)), "step memory");
  bytes_ = 0;
  void* host = nullptr;
  void* data = nullptr;
  device_.Check(cudaMallocHost(&host, sides_ * bytes), "pinned memory");
  device_.Check(AllocateMemory(&data, bytes), "step memory");
  host_ = static_cast<std::byte*>(host);
  device_data_ = static_cast<std::byte*>(data);
  if (host_ == nullptr || device_data_ == nullptr) return;
  // Results come back in one copy, with those of rows that write none; so they are zeroed.
  device_.Check(cudaMemsetAsync(data, 0, bytes, device_.stream()), "step memory");
  bytes_ = bytes;
}

void MirroredMemory::Swap(MirroredMemory& other) {
  std::swap(sides_, other.sides_);
  std::swap(host_, other.host_);
  std::swap(device_data_, other.device_data_);
  std::swap(bytes_, other.bytes_);
}

bool Uploads::Reserve(size_t piece_bytes, size_t step_bytes) {
  const auto begin = static_cast<size_t>(step_begin_);
  if (memory_.bytes() > 0 && piece_bytes <= begin && step_bytes <= memory_.bytes() - begin) {
    return true;
  }
  const size_t pieces = std::max(Capacity(piece_bytes), begin);
  const size_t step = std::max(Capacity(step_bytes), memory_.bytes() - begin);
  // Waits for the running work, which reads the old memory.
  device_.MakeCurrent();
  device_.Check(cudaStreamSynchronize(device_.stream()), "growth of step memory");
  MirroredMemory grown(device_, 2);
  grown.Reallocate(pieces + step);
  if (grown.bytes() == 0) return false;
  if (memory_.bytes() > 0) {
    const auto held = static_cast<size_t>(piece_bytes_);
    std::memcpy(grown.host(side_) + pieces - held, memory_.host(side_) + begin - held,
                held + step_bytes_);
  }
  memory_.Swap(grown);
  step_begin_ = static_cast<int64_t>(pieces);
  step_changed_ = true;
  ++generation_;
  return true;
}

bool Uploads::BeginStep(size_t bytes) {
  if (std::exchange(sent_, false)) side_ = 1 - side_;
  step_bytes_ = 0;
  if (!Reserve(static_cast<size_t>(piece_bytes_), bytes)) return false;
  step_bytes_ = bytes;
  step_changed_ = true;
  return true;
}

int64_t Uploads::AddPiece(size_t bytes) {
  const auto held = static_cast<size_t>(piece_bytes_);
  const size_t total = held + std::bit_ceil(std::max(bytes, kAlignment));
  if (!Reserve(total, step_bytes_)) return 0;
  piece_bytes_ = static_cast<int64_t>(total);
  return -piece_bytes_;
}

void Uploads::Send() {
  const int64_t end = step_changed_ ? static_cast<int64_t>(step_bytes_) : -sent_pieces_;
  const auto bytes = static_cast<size_t>(end + piece_bytes_);
  if (bytes > 0) {
    device_.Check(
        cudaMemcpyAsync(memory_.device() + step_begin_ - piece_bytes_, HostAt(-piece_bytes_), bytes,
                        cudaMemcpyHostToDevice, device_.stream()),
        "upload of a step");
    sent_ = true;
  }
  step_changed_ = false;
  sent_pieces_ = piece_bytes_;
}

int64_t Results::Add(size_t bytes) {
  const auto offset = static_cast<int64_t>(used_);
  used_ += AlignUp(bytes);
  return offset;
}

bool Results::Reserve() {
  if (fits()) return true;
  memory_.Reallocate(Capacity(used_));
  ++generation_;
  return memory_.bytes() > 0;
}

void Results::Fetch() {
  if (used_ == fetched_) return;
  device_.Check(cudaMemcpyAsync(memory_.host() + fetched_, memory_.device() + fetched_,
                                used_ - fetched_, cudaMemcpyDeviceToHost, device_.stream()),
                "download of results");
  fetched_ = used_;
}

}  // namespace eta::cuda
