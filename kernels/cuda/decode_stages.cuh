// The copying side of decode attention: one warp that brings the stages of a CTA's share into a
// ring in shared memory, well ahead of the warps that compute.
#pragma once

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/decode_plan.cuh"

namespace eta::cuda::decode {

// What the copying warp tells a computing warp about its 16 tokens of a stage: one read of 16
// bytes.
struct alignas(16) WarpNote {
  uint32_t heads;  // of the group, that admit the tokens' block
  // Tokens from the first that exist (0 to 16), then the token itself among them (0 to 15, or 16:
  // not here), then flags.
  uint32_t tokens;
  int32_t list;  // -1: there are no more stages
  int32_t unit;

  static constexpr uint32_t kTail = 1u << 16;  // tokens of the partial block
  static constexpr uint32_t kLast = 1u << 17;  // stage of the list in this unit
  __device__ int valid() const { return static_cast<int>(tokens & 0xff); }
  __device__ int own() const { return static_cast<int>(tokens >> 8 & 0xff); }
  __device__ bool Has(uint32_t flag) const { return (tokens & flag) != 0; }
};
struct StageNote {
  WarpNote warps[kComputeWarps];
};

// The warp's note, read by the lane that later hands the stage back.
__device__ __forceinline__ WarpNote ReadNote(const WarpNote& shared) {
  constexpr uint32_t kAll = 0xffffffffu;
  WarpNote note = {};
  if (threadIdx.x % 32 == 0) note = shared;
  note.heads = __shfl_sync(kAll, note.heads, 0);
  note.tokens = __shfl_sync(kAll, note.tokens, 0);
  note.list = __shfl_sync(kAll, note.list, 0);
  note.unit = __shfl_sync(kAll, note.unit, 0);
  return note;
}

// The shared memory of a CTA, in this order: stages, sums of the four warps, barriers, notes, plan.
template <int D, int HeadTiles>
struct SharedLayout {
  static constexpr int kHeads = 8 * HeadTiles;
  static constexpr int kSumStride = D + 4;  // so that a warp's stores meet different banks
  static constexpr size_t kStageBytes = 2 * kStageTokens * D * 2;
  static constexpr size_t kSumBytes = sizeof(float) * kComputeWarps * kHeads * kSumStride;
  struct Fixed {
    Barrier full[kMaxStages];
    Barrier empty[kMaxStages];
    StageNote notes[kMaxStages];
    float max[kComputeWarps][kHeads];
    float sum[kComputeWarps][kHeads];
  };
  static size_t Bytes(int32_t num_stages, int32_t num_lists) {
    return num_stages * kStageBytes + kSumBytes + sizeof(Fixed) + Plan::Bytes(num_lists);
  }
};

// Position in the ring of stages.
struct RingCursor {
  int32_t slot = 0;
  uint32_t phase = 0;
  __device__ void Advance(int32_t num_stages) {
    if (++slot == num_stages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// Where the blocks of a stage are. Each lane of the copying warp finds out for one.
struct StageSource {
  StageNote note;
  int32_t block[kMaxEntries];  // physical; -1: none
  int32_t kv_head;
  int32_t first_token;  // of the block, where it takes two stages
};

__device__ inline StageSource FindSource(const DecodeArgs& args, const Plan& plan, int32_t unit,
                                         int32_t end, int32_t stage) {
  const KvTile& tile = args.tile;
  const int32_t list = plan.ListOf(stage);
  const int32_t in_list = stage - plan.begin[list];
  const int32_t num_blocks = plan.num_blocks[list];
  const int32_t stages_per_block = max(tile.block_size / kStageTokens, 1);
  const int32_t entries = max(kStageTokens / tile.block_size, 1);
  const int64_t global_list = static_cast<int64_t>(args.first_row) * tile.num_kv_heads + list;
  const uint32_t* blocks = args.selection.blocks + global_list * args.selection.capacity;
  const uint32_t* heads = args.selection.heads + global_list * args.selection.capacity;

  // Loads that do not depend on each other come first: a CTA with a small share waits for them.
  uint32_t listed[kMaxEntries];
  uint32_t admitting[kMaxEntries];
  const int32_t first_entry = entries > 1 ? in_list * entries : in_list / stages_per_block;
#pragma unroll
  for (int e = 0; e < kMaxEntries; ++e) {
    const bool full = e < entries && first_entry + e < num_blocks;
    listed[e] = full ? blocks[first_entry + e] : 0;
    admitting[e] = full ? heads[first_entry + e] : 0xffffffffu;
  }
  const StepRow& row = args.step.rows[args.first_row + list / tile.num_kv_heads];
  const int32_t num_full = (row.position + 1) / tile.block_size;
  const int32_t tail = (row.position + 1) % tile.block_size;
  const bool identity = row.admit_all != 0;

  StageSource source;
  source.kv_head = list % tile.num_kv_heads;
  source.first_token = in_list % stages_per_block * kStageTokens;
  const uint32_t last = stage + 1 == min(end, plan.begin[list + 1]) ? WarpNote::kLast : 0u;
  int32_t ordinals[kMaxEntries];
#pragma unroll
  for (int e = 0; e < kMaxEntries; ++e) {
    const int32_t entry = first_entry + e;
    const bool exists = e < entries && (entry < num_blocks || (entry == num_blocks && tail > 0));
    ordinals[e] = entry == num_blocks ? num_full
                  : identity          ? entry
                                      : static_cast<int32_t>(listed[e]);
    source.block[e] = exists ? args.step.tables[row.table_begin + ordinals[e]] : -1;
  }
#pragma unroll
  for (int w = 0; w < kComputeWarps; ++w) {
    const int e = w * 16 / min(tile.block_size, kStageTokens);
    int32_t valid = 0;
    int32_t own = -1;
    uint32_t admitted = 0;
    uint32_t partial = 0;
#pragma unroll
    for (int i = 0; i < kMaxEntries; ++i) {
      if (i != e || source.block[i] < 0) continue;
      const bool is_tail = first_entry + i == num_blocks;
      const int32_t first = source.first_token + w * 16 - i * tile.block_size;  // in the block
      valid = min(max((is_tail ? tail : tile.block_size) - first, 0), 16);
      own = row.position - ordinals[i] * tile.block_size - first;
      admitted = identity ? 0xffffffffu : admitting[i];
      partial = is_tail ? WarpNote::kTail : 0u;
    }
    const auto place = static_cast<uint32_t>(own >= 0 && own < 16 ? own : 16);
    source.note.warps[w] = {admitted, static_cast<uint32_t>(valid) | place << 8 | last | partial,
                            list, unit};
  }
  return source;
}

// The units of a CTA, one after the other: its own share, then small units as long as there are
// any. Lane 0 asks for the next one early, since the answer takes a trip to L2.
class UnitQueue {
 public:
  __device__ UnitQueue(const DecodeArgs& args, const Units& units)
      : taken_(args.taken),
        units_(units),
        unit_(static_cast<int32_t>(blockIdx.x) < units.num_shares ? static_cast<int32_t>(blockIdx.x)
                                                                  : -1) {
    Ask();
  }
  __device__ int32_t unit() const { return unit_; }  // -1: none is left
  __device__ int32_t next() const { return __shfl_sync(0xffffffffu, next_, 0); }
  __device__ void Advance() {
    unit_ = next();
    Ask();
  }

 private:
  __device__ void Ask() {
    const bool asks = units_.num_pieces > 0 && unit_ >= 0;
    if (threadIdx.x % 32 == 0) next_ = -1;
    if (!asks || threadIdx.x % 32 != 0) return;
    const int32_t piece = atomicAdd(taken_, 1);
    if (piece < units_.num_pieces) next_ = units_.num_shares + piece;
    // Every CTA asks once in vain; the last of these questions ends the launch's use of the
    // counter.
    if (piece == units_.num_pieces + static_cast<int32_t>(gridDim.x) - 1) *taken_ = 0;
  }

  int32_t* taken_;
  const Units& units_;
  int32_t unit_;
  int32_t next_ = -1;
};

// The copying warp: fills the ring with the stages of the CTA's units, then says that it is done.
template <int D, int HeadTiles>
__device__ void CopyStages(const DecodeArgs& args, const Plan& plan, const Units& units,
                           std::byte* stages, typename SharedLayout<D, HeadTiles>::Fixed& fixed) {
  using Layout = SharedLayout<D, HeadTiles>;
  constexpr uint32_t kAll = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  const KvTile& tile = args.tile;
  const int32_t piece_tokens = min(tile.block_size, kStageTokens);
  const uint32_t piece_bytes = static_cast<uint32_t>(piece_tokens) * D * 2;
  const int32_t entries = kStageTokens / piece_tokens;
  RingCursor cursor;
  UnitQueue queue(args, units);
  const auto find = [&](int32_t unit, int32_t first) {
    const int32_t end = units.Begin(unit + 1);
    return FindSource(args, plan, unit, end, min(first + lane, end - 1));
  };
  StageSource source;
  if (queue.unit() >= 0) source = find(queue.unit(), units.Begin(queue.unit()));
  for (; queue.unit() >= 0; queue.Advance()) {
    const int32_t end = units.Begin(queue.unit() + 1);
    for (int32_t first = units.Begin(queue.unit()); first < end; first += 32) {
      for (int32_t i = 0; i < min(32, end - first); ++i) {
        Wait(&fixed.empty[cursor.slot], cursor.phase ^ 1);
        if (lane == i) fixed.notes[cursor.slot] = source.note;
        uint32_t bytes = 0;
#pragma unroll
        for (int e = 0; e < kMaxEntries; ++e) bytes += source.block[e] >= 0 ? 2 * piece_bytes : 0;
        bytes = __shfl_sync(kAll, bytes, i);
        __syncwarp();
        Barrier* full = &fixed.full[cursor.slot];
        ExpectBytes(full, bytes, i);
        std::byte* keys = stages + cursor.slot * Layout::kStageBytes;
        const int32_t kv_head = __shfl_sync(kAll, source.kv_head, i);
        const int32_t first_token = __shfl_sync(kAll, source.first_token, i);
        const size_t skipped = static_cast<size_t>(first_token) * D * 2;
#pragma unroll
        for (int e = 0; e < kMaxEntries; ++e) {
          if (e >= entries) break;
          const int32_t block = __shfl_sync(kAll, source.block[e], i);
          if (block < 0) continue;
          const std::byte* from = args.tiles + tile.K(block, kv_head) + skipped;
          std::byte* to = keys + e * piece_bytes;
          if (tile.block_size == kStageTokens) {
            CopyTile(to, from, 2 * piece_bytes, full);
          } else {
            CopyTile(to, from, piece_bytes, full);
            CopyTile(to + Layout::kStageBytes / 2, from + tile.tile_bytes(), piece_bytes, full);
          }
        }
        CommitCopies(full);
        cursor.Advance(args.num_stages);
      }
      // Takes several trips to L2, for which the computing warps have a full ring to work on.
      if (first + 32 < end) {
        source = find(queue.unit(), first + 32);
      } else if (queue.next() >= 0) {
        source = find(queue.next(), units.Begin(queue.next()));
      }
    }
  }
  Wait(&fixed.empty[cursor.slot], cursor.phase ^ 1);
  if (lane == 0) {
    for (WarpNote& note : fixed.notes[cursor.slot].warps) note.list = -1;
  }
  __syncwarp();
  ExpectBytes(&fixed.full[cursor.slot], 0);
  CommitCopies(&fixed.full[cursor.slot]);
}

}  // namespace eta::cuda::decode
