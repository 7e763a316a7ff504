// Counts what a choice of blocks misses: blocks and keys that reach the row's threshold, and that a
// head does not attend to.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "calibration/evaluation/rivals/kept_blocks.h"
#include "kernels/cpu/workers.h"
#include "kernels/forwarding_backend.h"
#include "kernels/params/selection.h"

namespace eta {

struct MissCounts {
  int64_t blocks = 0;  // full ones that are not always read and reach the threshold
  int64_t missed_blocks = 0;
  int64_t keys = 0;  // all that reach it
  int64_t missed_keys = 0;

  void Add(const MissCounts& other) {
    blocks += other.blocks;
    missed_blocks += other.missed_blocks;
    keys += other.keys;
    missed_keys += other.missed_keys;
  }
};

// Watches the decode rows of a backend, rivals' choices too. A block reaches a threshold by its
// largest score, a relative one by its log-sum-exp. With confirmed reads a head attends to what it
// keeps; of a rival that chooses single keys it attends to the blocks that hold one. Rows whose
// thresholds say nothing, those of rivals on a model without a gate, are not counted. Sequences
// begin at position 0.
class BlockMisses : public ForwardingBackend {
 public:
  // Looks at rows whose position is a multiple of `stride`.
  BlockMisses(std::shared_ptr<Backend> backend, bool gated, int32_t stride, int num_threads = 1);

  // Where rows are counted from here on; null: nowhere. It must live as long.
  void CountInto(MissCounts* counts) { counts_ = counts; }

  void Plan(const BatchView& batch) override;
  void AppendKv(const AppendKvParams& params) override;
  void DecodeAttention(const AttentionParams& params) override;

 private:
  struct Attended;  // by a layer, on the host

  struct Row {
    const SequenceRows& sequence;
    int32_t index;  // of the step
    int32_t position;
  };

  MissCounts Count(const Attended& attended, const Row& row, int32_t query_head) const;

  const bool gated_;
  const int32_t stride_;
  BatchView batch_;
  std::map<const std::byte*, KeptLayer> layers_;  // by the layer's tiles
  cpu::Workers workers_;
  MissCounts* counts_ = nullptr;
};

}  // namespace eta
