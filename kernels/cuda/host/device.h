// One CUDA device: its stream, what it is, and the first error it met. A CUDA error is sticky:
// after it, nothing that the device computed can be believed, and Finish() reports it. Only a lack
// of memory passes: what had begun is lost with it, the device is well. Single-threaded, as a
// backend is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eta::cuda {

class Device {
 public:
  // Device `index` of those that the process sees. Unavailable, saying why, where there is none.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Makes this the calling thread's device, for the runtime calls that follow.
  void MakeCurrent() const;

  int index() const { return index_; }
  const std::string& name() const { return name_; }
  int num_sms() const { return num_sms_; }
  int compute_capability() const { return compute_capability_; }               // 90 for 9.0
  size_t shared_memory_per_block() const { return shared_memory_per_block_; }  // with opt-in
  size_t l2_bytes() const { return l2_bytes_; }
  cudaStream_t stream() const { return stream_; }

  // Keeps the first error, with what was being done.
  void Check(cudaError_t error, std::string_view what);
  void Fail(const absl::Status& error);
  const absl::Status& status() const { return status_; }
  // The error if it was a lack of memory, which is over then; else OK.
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
  absl::Status status_;
};

// As cudaMalloc; where tests make the device run out of memory.
cudaError_t AllocateMemory(void** data, size_t bytes);

// Device memory that ops keep between launches: one piece per purpose, zero at first, grown (and
// zeroed again) when an op asks for more. Growth changes addresses, so graphs captured before it
// are void: generation() tells. Never grows while a graph is being captured, because every program
// runs plainly once before it is captured.
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
    kWideTiles,
    kCount
  };

  explicit Scratch(Device& device) : device_(device), pieces_(static_cast<size_t>(Use::kCount)) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least `bytes` bytes, 256-byte aligned; null if the device has no memory (its status is then
  // an error).
  std::byte* Get(Use use, size_t bytes);
  // Gives all of it back, when nothing runs that uses it.
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
