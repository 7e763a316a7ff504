// What one rendering may hold and do. Values count themselves here, so that a template that grows a
// text without end, or loops without one, meets a limit and not the machine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace eta::jinja {

struct Namespace;

// Of one rendering, on one thread. It outlives the values that it counts.
class Heap {
 public:
  struct Limits {
    size_t live_bytes;
    uint64_t steps;
  };
  explicit Heap(const Limits& limits) : limits_(limits) {}
  ~Heap() { EmptyNamespaces(); }
  Heap(const Heap&) = delete;

  // Operations done; over the limit nothing fails at once, but status() does.
  void Work(uint64_t steps) { steps_ += steps; }
  // Work in proportion to bytes that are looked at or copied.
  void WorkOnBytes(size_t bytes) { steps_ += 1 + bytes / 64; }

  // False, and for good, where there is no room for `bytes` more.
  bool Hold(size_t bytes) {
    if (full_ || bytes > limits_.live_bytes - live_bytes_) {
      full_ = true;
      return false;
    }
    live_bytes_ += bytes;
    return true;
  }
  void Release(size_t bytes) { live_bytes_ -= bytes; }
  // A nesting of values that is too deep.
  void RefuseDepth() { deep_ = true; }

  // Namespaces alone can come to hold themselves: they are emptied at the end, all at once.
  void Keep(std::shared_ptr<Namespace> space) { namespaces_.push_back(std::move(space)); }
  bool exhausted() const { return full_ || deep_ || steps_ > limits_.steps; }
  // OK, or RESOURCE_EXHAUSTED with the limit that was met.
  absl::Status status() const;

 private:
  void EmptyNamespaces();

  const Limits limits_;
  size_t live_bytes_ = 0;
  uint64_t steps_ = 0;
  bool full_ = false;
  bool deep_ = false;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

}  // namespace eta::jinja
