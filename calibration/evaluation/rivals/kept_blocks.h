// Copies on the host of what AppendKv stored in one layer, by block: records, keys, values and the
// box that holds a block's keys. Rules that the product does not have choose blocks by them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibration/evaluation/rivals/block_scores.h"
#include "kernels/backend.h"
#include "kernels/cpu/workers.h"
#include "kernels/params/layer.h"

namespace eta {

class HostRows;

// K or V of one token and KV head, [d], as a cache of this type gives it back.
void RoundToCache(DType dtype, std::span<const float> row, std::span<float> out);

// The largest product with q of what lies in a box, [d] each.
float BoxBound(std::span<const float> q, std::span<const float> low, std::span<const float> high);

struct KeptParts {
  bool records = false;
  bool keys = false;
  bool boxes = false;
  bool values = false;
};

// Grows with the blocks that are appended to.
class KeptLayer {
 public:
  explicit KeptLayer(const KvGeometry& geometry) : geometry_(geometry) {}

  // Copies the rows of a step from `backend`, which was called with this AppendKv before. Blocks
  // are copied beside one another, by `workers`.
  void Keep(const BatchView& batch, const AppendKvParams& params, Backend& backend,
            const KeptParts& parts, cpu::Workers& workers);

  const KvGeometry& geometry() const { return geometry_; }
  const BlockRecord& record(int32_t block, int32_t kv_head) const {
    return At(block, kv_head).record;
  }
  // The first `count` keys as they are stored.
  KeyColumns keys(int32_t block, int32_t kv_head, int32_t count) const {
    return {
        .values = At(block, kv_head).keys, .stride = Stride(), .count = static_cast<size_t>(count)};
  }
  // The values of its tokens as they are stored, [b, d].
  std::span<const float> values(int32_t block, int32_t kv_head) const {
    return At(block, kv_head).values;
  }
  // The least and the largest value of every coordinate over the keys of a full block, [d].
  std::span<const float> low(int32_t block, int32_t kv_head) const {
    return At(block, kv_head).low;
  }
  std::span<const float> high(int32_t block, int32_t kv_head) const {
    return At(block, kv_head).high;
  }

 private:
  struct Block {
    BlockRecord record;
    std::vector<float> keys;    // [d, stride]
    std::vector<float> values;  // [b, d]
    std::vector<float> low;
    std::vector<float> high;
  };

  size_t Index(int32_t block, int32_t kv_head) const {
    return static_cast<size_t>(block) * static_cast<size_t>(geometry_.num_kv_heads) +
           static_cast<size_t>(kv_head);
  }
  size_t Stride() const { return KeyColumns::StrideFor(static_cast<size_t>(geometry_.block_size)); }
  const Block& At(int32_t block, int32_t kv_head) const { return blocks_[Index(block, kv_head)]; }
  // The keys of `rows` that lie in one of their blocks, and their values if there are any; the
  // block's box too, if `box` and it is full.
  void KeepBlock(const SequenceRows& rows, int32_t table, const HostRows& keys,
                 const HostRows* values, int32_t ordinal, int32_t kv_head, bool box);
  void KeepKey(Block& block, int32_t offset, const float* key) const;
  void KeepValue(Block& block, int32_t offset, const float* value) const;
  void Box(Block& block) const;

  KvGeometry geometry_;
  std::vector<Block> blocks_;  // [blocks, HKV]
};

// The blocks of one row, for one KV head, by their ordinals in the sequence.
struct RowBlocks {
  const KeptLayer& layer;
  std::span<const int32_t> block_table;
  int32_t kv_head = 0;
  int32_t num_keys = 0;  // T

  int32_t block_size() const { return layer.geometry().block_size; }
  int32_t num_full() const { return num_keys / block_size(); }  // N
  const BlockRecord& record(int32_t ordinal) const {
    return layer.record(Physical(ordinal), kv_head);
  }
  std::span<const float> low(int32_t ordinal) const {
    return layer.low(Physical(ordinal), kv_head);
  }
  std::span<const float> high(int32_t ordinal) const {
    return layer.high(Physical(ordinal), kv_head);
  }
  std::span<const float> values(int32_t ordinal) const {
    return layer.values(Physical(ordinal), kv_head);
  }
  // The keys of the block that the row sees: all of a full block, those up to its own of the last
  // one.
  KeyColumns keys(int32_t ordinal) const;

 private:
  int32_t Physical(int32_t ordinal) const { return block_table[static_cast<size_t>(ordinal)]; }
};

}  // namespace eta
