// What goes to the device before a program runs and what comes back after it: one copy each way.
// Single-threaded. Offsets, not addresses, are what callers keep: growth moves the memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/host/device.h"

namespace eta::cuda {

// Device memory, and pinned host memory on one or more sides, as much on each. Null after a failed
// growth (the device's status then says so).
class MirroredMemory {
 public:
  explicit MirroredMemory(Device& device, size_t sides = 1) : device_(device), sides_(sides) {}
  ~MirroredMemory();
  MirroredMemory(const MirroredMemory&) = delete;
  MirroredMemory& operator=(const MirroredMemory&) = delete;

  std::byte* host(size_t side = 0) const { return host_ + side * bytes_; }
  std::byte* device() const { return device_data_; }
  size_t bytes() const { return bytes_; }

  // Exchanges the memory, which nothing that runs may use, for new memory of `bytes` bytes,
  // contents undefined.
  void Reallocate(size_t bytes);
  void Swap(MirroredMemory& other);

 private:
  Device& device_;
  size_t sides_;
  std::byte* host_ = nullptr;
  std::byte* device_data_ = nullptr;
  size_t bytes_ = 0;
};

// To the device: the arrays of the step, and in front of them, growing downwards, the pieces that
// single ops brought. So both begin at the same address in every step, and one copy sends them.
//
//   unused | piece 2 | piece 1 | piece 0 | step        offsets count from the step's first byte
//
// The host has two sides of it and writes them in turns, so that it can write a step while the copy
// of the last one is under way; the device has one, which the next copy reaches when all that runs
// before it has ended.
class Uploads {
 public:
  explicit Uploads(Device& device) : device_(device), memory_(device, 2) {}

  // Makes room for the next step, whose arrays the caller then writes at HostAt(0). False if there
  // is no memory. The copy of the step before the last one must have ended.
  bool BeginStep(size_t bytes);
  // The arrays were written again, in place.
  void ChangeStep() { step_changed_ = true; }

  // Makes room for a piece; its offset is at most 0 - bytes. Sizes are rounded up to a power of
  // two, so that pieces whose length varies seldom move the ones behind them. 0 if there is no
  // memory.
  int64_t AddPiece(size_t bytes);

  std::byte* HostAt(int64_t offset) const { return memory_.host(side_) + step_begin_ + offset; }
  const std::byte* DeviceAt(int64_t offset) const {
    return memory_.device() + step_begin_ + offset;
  }

  // Sends the pieces, and the step if it was written since the last call, on the device's stream.
  // More pieces of the same step may be added once the stream has come to it.
  void Send();
  void ClearPieces() { piece_bytes_ = 0; }
  // Changes when the device addresses do.
  int64_t generation() const { return generation_; }

 private:
  bool Reserve(size_t piece_bytes, size_t step_bytes);

  Device& device_;
  MirroredMemory memory_;
  size_t side_ = 0;         // that is written
  bool sent_ = false;       // from that side
  int64_t step_begin_ = 0;  // bytes for pieces
  int64_t piece_bytes_ = 0;
  size_t step_bytes_ = 0;
  bool step_changed_ = false;
  int64_t generation_ = 0;
};

// From the device: one region per result.
class Results {
 public:
  explicit Results(Device& device) : device_(device), memory_(device) {}

  // Offset of a region of `bytes` bytes.
  int64_t Add(size_t bytes);
  // Before the program runs: memory for all regions. False if there is none.
  bool Reserve();
  // After it: starts the copy to the host, where results stand until the next Fetch.
  void Fetch();
  void Clear() { used_ = 0; }

  const std::byte* HostAt(int64_t offset) const { return memory_.host() + offset; }
  std::byte* DeviceAt(int64_t offset) const { return memory_.device() + offset; }
  int64_t generation() const { return generation_; }

 private:
  Device& device_;
  MirroredMemory memory_;
  size_t used_ = 0;
  int64_t generation_ = 0;
};

}  // namespace eta::cuda
