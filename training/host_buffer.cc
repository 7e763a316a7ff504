#include "training/host_buffer.h"

#include <new>

#include "absl/strings/str_cat.h"

namespace eta::training {
namespace {

constexpr std::align_val_t kAlignment{64};

class HostBuffer final : public Buffer {
 public:
  HostBuffer(std::byte* data, size_t size) : Buffer(data, size) {}
  ~HostBuffer() override { ::operator delete(data(), kAlignment); }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Buffer>> AllocateHostBuffer(size_t bytes) {
  void* memory = ::operator new(bytes, kAlignment, std::nothrow);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory: the host has no ", bytes, " bytes left"));
  }
  return std::make_unique<HostBuffer>(static_cast<std::byte*>(memory), bytes);
}

}  // namespace eta::training
