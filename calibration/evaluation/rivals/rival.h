// Other rules that choose the blocks of a decode row, to be compared with the product's. They exist
// in evaluation only, run on the host and may read every key: what they cost is not measured. What
// they read is counted as the product counts it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibration/evaluation/rivals/kept_blocks.h"
#include "kernels/batch.h"

namespace eta {

// One query head of one row.
struct RivalHead {
  int32_t layer = 0;
  int32_t query_head = 0;
  std::span<const float> q = {};  // [d]
  float softmax_scale = 0.0f;
  float threshold = 0.0f;                   // tau_eff, by which a gate tempers
  std::span<const uint64_t> tempered = {};  // SequenceRows::tempered
  const AttentionOptions& options;
  const RowBlocks& blocks;           // of its row and KV head
  std::span<const float> seen = {};  // [T], of a rule that remembers: what Look made of the row
};

// A rule's memory of a sequence's earlier rows, for one layer and query head: a number per block,
// the last one included, or per key. It is empty before the first row.
using RivalMemory = std::vector<double>;

// Immutable; thread-safe.
class Rival {
 public:
  virtual ~Rival() = default;

  // What AppendKv's copies must hold.
  virtual KeptParts needs() const = 0;

  // Sets, of `admitted` [N], 1 at the blocks that the head admits. Those that are always read have
  // it already. By key it is [T], the row's keys: what is admitted alone is attended to and read,
  // no tail beside it. REQUIRES: by key, the row's own key is admitted.
  virtual void Admit(const RivalHead& head, std::span<uint8_t> admitted) const = 0;
  virtual bool by_key() const { return false; }
  // The first layers, of which it reads all and is not asked.
  virtual int32_t dense_layers() const { return 0; }

  // Bytes that the rule reads of every full block and KV head to choose for its query heads, in a
  // layer that is not dense.
  virtual int64_t IndexBytes(const KvGeometry& geometry, int32_t group_size) const = 0;

  // A rule that remembers sees all rows of a sequence in their order: prompt rows, which attend to
  // all, by Watch; decode rows by Look, several at a time, and then by AdmitAndRemember in the
  // place of Admit. Sequences one at a time.
  virtual bool remembers() const { return false; }
  // `rows`: one query head's, in their order.
  virtual void Watch(std::span<const RivalHead> rows, RivalMemory& memory) const;
  // Adds what was watched of later rows, which began with an empty memory.
  virtual void AddWatched(const RivalMemory& later, RivalMemory& memory) const;
  // True if the other one's Watch leaves the same memory.
  virtual bool WatchesLike(const Rival& other) const { return this == &other; }
  // What it makes of a decode row's keys, `seen` [T], whatever it remembers.
  virtual void Look(const RivalHead& head, std::span<float> seen) const;
  virtual void AdmitAndRemember(const RivalHead& head, std::span<uint8_t> admitted,
                                RivalMemory& memory) const;
};

}  // namespace eta
