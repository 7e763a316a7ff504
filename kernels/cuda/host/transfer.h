// The data that goes to the device before a program runs and comes back after it, one copy each
// way. Single-threaded. Callers keep offsets, not addresses, since growth moves the memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/host/device.h"

namespace eta::cuda {

// Device memory, and pinned host memory of the same size on each of one or more sides. Null after a
// failed growth; the device's status then says so.
class MirroredMemory {
 public:
  explicit MirroredMemory(Device& device, size_t sides = 1) : device_(device), sides_(sides) {}
  ~MirroredMemory();
  MirroredMemory(const MirroredMemory&) = delete;
  MirroredMemory& operator=(const MirroredMemory&) = delete;

  std::byte* host(size_t side = 0) const { return host_ + side * bytes_; }
  std::byte* device() const { return device_data_; }
  size_t bytes() const { return bytes_; }

  // Replaces the memory by new memory of `bytes` bytes, contents undefined. REQUIRES: nothing that
  // runs uses the old memory.
  void Reallocate(size_t bytes);
  void Swap(MirroredMemory& other);

 private:
  Device& device_;
  size_t sides_;
  std::byte* host_ = nullptr;
  std::byte* device_data_ = nullptr;
  size_t bytes_ = 0;
};

// Data for the device: the arrays of the step and, in front of them and growing downwards, the
// pieces of single ops. So the step begins at the same address every time, and one copy sends all.
//
//   unused | piece 2 | piece 1 | piece 0 | step        offsets count from the step's first byte
//
// The host has two sides and writes them in turns, so that it can write a step while the last one
// is being copied. The device has one side: the next copy reaches it when all work before it has
// ended.
class Uploads {
 public:
  explicit Uploads(Device& device) : device_(device), memory_(device, 2) {}

  // Makes room for the next step; the caller then writes its arrays at HostAt(0). False if there is
  // no memory. REQUIRES: the copy of the step before the last one has ended.
  bool BeginStep(size_t bytes);
  // Tells that the arrays were written again, in place.
  void ChangeStep() { step_changed_ = true; }

  // Makes room for a piece and returns its offset, at most 0 - bytes; 0 if there is no memory.
  // Sizes are rounded up to a power of two, so that pieces of varying length seldom move those
  // behind them.
  int64_t AddPiece(size_t bytes);

  std::byte* HostAt(int64_t offset) const { return memory_.host(side_) + step_begin_ + offset; }
  const std::byte* DeviceAt(int64_t offset) const {
    return memory_.device() + step_begin_ + offset;
  }

  // Sends the pieces that were not sent yet, and the step if it was written since the last call, on
  // the device's stream. More pieces of the same step may be added behind them at any time.
  void Send();
  // REQUIRES: the stream has sent the pieces, or BeginStep follows.
  void ClearPieces() { piece_bytes_ = sent_pieces_ = 0; }
  // Changes when the device addresses change.
  int64_t generation() const { return generation_; }

 private:
  bool Reserve(size_t piece_bytes, size_t step_bytes);

  Device& device_;
  MirroredMemory memory_;
  size_t side_ = 0;         // the side that is written
  bool sent_ = false;       // true: that side was sent
  int64_t step_begin_ = 0;  // bytes in front of the step, for pieces
  int64_t piece_bytes_ = 0;
  int64_t sent_pieces_ = 0;  // bytes of those that were sent
  size_t step_bytes_ = 0;
  bool step_changed_ = false;
  int64_t generation_ = 0;
};

// Data from the device: one region per result.
class Results {
 public:
  explicit Results(Device& device) : device_(device), memory_(device) {}

  // Adds a region of `bytes` bytes and returns its offset.
  int64_t Add(size_t bytes);
  // Reserves memory for all regions before the program runs. False if there is none. Where it grows
  // what was fetched is lost, and nothing that runs may use it.
  bool Reserve();
  // Whether Reserve moves nothing.
  bool fits() const { return used_ <= memory_.bytes(); }
  // Starts the copy of what was added since the last Fetch to the host, after the program. The
  // results stay there until a Fetch after the next Clear.
  void Fetch();
  void Clear() { used_ = fetched_ = 0; }

  const std::byte* HostAt(int64_t offset) const { return memory_.host() + offset; }
  std::byte* DeviceAt(int64_t offset) const { return memory_.device() + offset; }
  int64_t generation() const { return generation_; }

 private:
  Device& device_;
  MirroredMemory memory_;
  size_t used_ = 0;
  size_t fetched_ = 0;  // of these
  int64_t generation_ = 0;
};

}  // namespace eta::cuda
