#include "kernels/cuda/host/device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/system/failpoint.h"

namespace eta::cuda {
namespace {

constexpr int kLeastComputeCapability = 80;

absl::Status Unavailable(std::string_view what, cudaError_t error) {
  return absl::UnavailableError(
      absl::StrCat("backend: cuda: ", std::string(what), ": ", cudaGetErrorString(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int index) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return absl::UnavailableError("backend: cuda: there is no NVIDIA driver");
  }
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return Unavailable("no usable device", error);
  if (index < 0 || index >= count) {
    return absl::UnavailableError(
        absl::StrCat("device: there is no device ", index, "; the process sees ", count));
  }
  error = cudaSetDevice(index);
  if (error != cudaSuccess) return Unavailable(absl::StrCat("device ", index), error);
  cudaDeviceProp properties;
  error = cudaGetDeviceProperties(&properties, index);
  if (error != cudaSuccess) return Unavailable(absl::StrCat("device ", index), error);

  auto device = std::unique_ptr<Device>(new Device());
  device->index_ = index;
  device->name_ = properties.name;
  device->num_sms_ = properties.multiProcessorCount;
  device->compute_capability_ = properties.major * 10 + properties.minor;
  device->shared_memory_per_block_ = properties.sharedMemPerBlockOptin;
  device->l2_bytes_ = static_cast<size_t>(properties.l2CacheSize);
  if (device->compute_capability_ < kLeastComputeCapability) {
    return absl::UnavailableError(absl::StrCat("device: ", device->name_,
                                               " has compute capability ", properties.major, ".",
                                               properties.minor, ", at least 8.0 is needed"));
  }
  error = cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking);
  if (error != cudaSuccess) return Unavailable(absl::StrCat("device ", index), error);
  return device;
}

Device::~Device() {
  MakeCurrent();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void Device::MakeCurrent() const {
  cudaSetDevice(index_);
}

void Device::Check(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return;
  const std::string message = absl::StrCat("cuda: device ", index_, ": ", std::string(what), ": ",
                                           cudaGetErrorString(error));
  if (error != cudaErrorMemoryAllocation) return Fail(absl::InternalError(message));
  cudaGetLastError();  // otherwise the next launch would report the error
  Fail(absl::ResourceExhaustedError(message));
}

void Device::Fail(const absl::Status& error) {
  status_.Update(error);
}

absl::Status Device::TakeShortage() {
  if (!absl::IsResourceExhausted(status_)) return absl::OkStatus();
  return std::exchange(status_, absl::OkStatus());
}

cudaError_t AllocateMemory(void** data, size_t bytes) {
  return ETA_FAILPOINT(kDeviceAllocate) ? cudaErrorMemoryAllocation : cudaMalloc(data, bytes);
}

Scratch::~Scratch() {
  Clear();
}

void Scratch::Clear() {
  device_.MakeCurrent();
  for (Piece& piece : pieces_) cudaFree(std::exchange(piece, {}).data);
  ++generation_;
}

std::byte* Scratch::Get(Use use, size_t bytes) {
  Piece& piece = pieces_[static_cast<size_t>(use)];
  if (bytes <= piece.bytes) return piece.data;
  // Small pieces double when they grow, so that few growths void the graphs. Large pieces grow to
  // the size that is asked for.
  constexpr size_t kLarge = size_t{64} << 20;
  const size_t doubled = piece.bytes < kLarge ? 2 * piece.bytes : 0;
  const size_t size = std::max({bytes, doubled, size_t{4096}});
  device_.Check(cudaFree(piece.data), "scratch memory");
  piece = {};
  void* data = nullptr;
  device_.Check(AllocateMemory(&data, size), "scratch memory");
  if (data == nullptr) return nullptr;
  piece = {static_cast<std::byte*>(data), size};
  device_.Check(cudaMemsetAsync(data, 0, size, device_.stream()), "scratch memory");
  ++generation_;
  return piece.data;
}

}  // namespace eta::cuda
