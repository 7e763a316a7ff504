// Device memory that ops of training keep between calls, one piece per purpose, and what every op
// is handed.
#pragma once

#include <array>
#include <cstddef>

#include "absl/status/status.h"
#include "kernels/cuda/host/device.h"

namespace eta::training::cuda {

// Pieces grow when an op asks for more, and their contents are undefined. The next op may write a
// piece as soon as the one before has been launched: all of them run on one stream.
class Workspace {
 public:
  enum class Use {
    kRows,
    kBlockGrads,
    kBlockGates,
    kProduct,
    kHost,
    kLogits,
    kSums,
    kScores,
    kWindows,
    kCount
  };

  explicit Workspace(eta::cuda::Device& device) : device_(device) {}
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // At least `bytes` bytes, 256-byte aligned; null if the device has no memory (its status is then
  // an error).
  void* Get(Use use, size_t bytes);

 private:
  struct Piece {
    void* data = nullptr;
    size_t bytes = 0;
  };
  eta::cuda::Device& device_;
  std::array<Piece, static_cast<size_t>(Use::kCount)> pieces_{};
};

struct Context {
  eta::cuda::Device& device;
  Workspace& workspace;
  // The first shape that an op does not do. The device is well then.
  absl::Status refused;
};

}  // namespace eta::training::cuda
