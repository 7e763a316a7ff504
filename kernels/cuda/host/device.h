// One CUDA device: its stream, its properties, and the first error that it met. A CUDA error is
// sticky: after it nothing that the device computed can be believed, and Finish() reports it. Only
// a lack of memory passes: the work that had begun is lost, but the device is well.
// Single-threaded, as a backend is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eta::cuda {

class Device {
 public:
  // Opens device `index` of those that the process sees. Unavailable, with the reason, if there is
  // none.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Makes this the calling thread's device for later runtime calls.
  void MakeCurrent() const;

  int index() const { return index_; }
  const std::string& name() const { return name_; }
  int num_sms() const { return num_sms_; }
  int compute_capability() const { return compute_capability_; }               // 90 for 9.0
  size_t shared_memory_per_block() const { return shared_memory_per_block_; }  // with opt-in
  size_t l2_bytes() const { return l2_bytes_; }
  cudaStream_t stream() const { return stream_; }
  // Where a launcher keeps how many clusters of so many thread blocks of a kernel the device holds
  // at once. Nullopt at first.
  std::optional<int>& cluster_room(const void* kernel, unsigned cluster) {
    return cluster_room_[{kernel, cluster}];
  }

  // Keeps the first error, with the operation that failed.
  void Check(cudaError_t error, std::string_view what);
  void Fail(const absl::Status& error);
  const absl::Status& status() const { return status_; }
  // Returns the error if it was a lack of memory, and forgets it; else OK.
  absl::Status TakeShortage();

 private:
  Device() = default;
  int index_ = 0;
  std::string name_;
  int num_sms_ = 0;
  int compute_capability_ = 0;
  size_t shared_memory_per_block_ = 0;
  size_t l2_bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  std::map<std::pair<const void*, unsigned>, std::optional<int>> cluster_room_;
  absl::Status status_;
};

// cudaMalloc with a failpoint, so that tests can make the device run out of memory.
cudaError_t AllocateMemory(void** data, size_t bytes);

// Device memory that ops keep between launches, one piece per purpose. It is zero at first, and
// grows (and is zeroed again) when an op asks for more. Growth changes addresses, so it voids all
// graphs captured before; generation() then changes. It never grows during a capture, because every
// program runs plainly once before it is captured.
class Scratch {
 public:
  enum class Use {
    kRescue,
    kSplit,
    kPartials,
    kSampling,
    kMatMul,
    kPoolBlocks,
    kAngles,
    kLocalAngles,
    kWideTiles,
    kMasses,
    kAdmittedTiles,
    kShadow,
    kUnpacked,
    kGridBarrier,
    kCount
  };

  explicit Scratch(Device& device) : device_(device), pieces_(static_cast<size_t>(Use::kCount)) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Returns at least `bytes` bytes, 256-byte aligned; null if the device has no memory (its status
  // is then an error).
  std::byte* Get(Use use, size_t bytes);
  // Frees all memory. REQUIRES: nothing that runs uses it.
  void Clear();
  int64_t generation() const { return generation_; }

 private:
  struct Piece {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  Device& device_;
  std::vector<Piece> pieces_;
  int64_t generation_ = 0;
};

}  // namespace eta::cuda
