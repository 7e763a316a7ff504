// The copying side of decode attention: one warp copies the stages of a CTA's units into a ring in
// shared memory, well ahead of the warps that compute.
#pragma once

#include "kernels/cuda/decode/decode_operands.cuh"
#include "kernels/cuda/decode/decode_plan.cuh"
#include "kernels/cuda/device/async_copy.cuh"

namespace eta::cuda::decode {

// The copying warp's note to a computing warp about its 16 tokens of a stage: one read of 16 bytes.
struct alignas(16) WarpNote {
  uint32_t heads;  // heads of the group that attend to the tokens' block
  // From the low bits: how many of the 16 tokens exist (0 to 16); which of them is the row's own
  // token (0 to 15, or 16: none here); flags; how many of them lie before the window (0 to 15); and
  // in the upper half which tokens are tempered. A launch of bundles has first_token() where the
  // row's own token stands, and from_window() in the place of heads.
  uint32_t tokens;
  int32_t list;  // -1: there are no more stages
  int32_t unit;

  static constexpr int kOwnShift = 5;
  static constexpr uint32_t kTail = 1u << 10;  // tokens of the partial block
  static constexpr uint32_t kLast = 1u << 11;  // last stage of the list in this unit
  static constexpr int kBeforeShift = 12;
  static constexpr int kTemperedShift = 16;
  __device__ int valid() const { return static_cast<int>(tokens & 0x1f); }
  __device__ int own() const { return static_cast<int>(tokens >> kOwnShift & 0x1f); }
  __device__ int before() const { return static_cast<int>(tokens >> kBeforeShift & 0xf); }
  __device__ uint32_t tempered() const { return tokens >> kTemperedShift; }

  // The list's row r has its own key at token r - first_token(), and keys after it are not its own.
  // -kFarBehind: the tokens are keys of all rows, and none's own.
  static constexpr int kFarBehind = 24;
  __device__ int first_token() const { return own() - kFarBehind; }
  // The list's row r sees token t if t + from_window() > r.
  __device__ int from_window() const { return static_cast<int>(heads); }
  __device__ bool Has(uint32_t flag) const { return (tokens & flag) != 0; }
};
struct StageNote {
  WarpNote warps[kComputeWarps];
};

// Which of the 16 keys from `position` on, a multiple of 16, are tempered.
__device__ __forceinline__ uint32_t TemperedTokens(const StepView& step, const TemperedKeys& keys,
                                                   int32_t position) {
  if (position / 32 >= keys.words) return 0;
  return static_cast<uint32_t>(step.tables[keys.begin + position / 32]) >> (position & 16) & 0xffff;
}

// Reads the calling warp's note.
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

// A CTA that takes bundles has one or two halves of four warps each. Columns are the pairs (row,
// head of the group) of a list in order. `Halves` is 0 where a list has one row: then there is one
// half, and columns are heads. Of two halves each computes on all tokens of a stage for its own
// 8 * HeadTiles columns, or on every other stage for all columns: so a stage is loaded and widened
// once, but a thread has the sums of twice the columns.
inline constexpr int kShareColumns = 2;
inline constexpr int kShareStages = 3;
template <int Halves>
inline constexpr bool kTwoHalves = Halves == kShareColumns || Halves == kShareStages;

// With two halves threadIdx.y is the half, or 2: there the first warp copies, and the others fill
// up a warpgroup, as the exchange of registers has it.
__device__ __forceinline__ int OwnHalf() {
  return static_cast<int>(threadIdx.y);
}
// The first of the columns that the calling half has.
template <int HeadTiles, int Halves>
__device__ __forceinline__ int FirstColumn() {
  return Halves == kShareColumns ? OwnHalf() * 8 * HeadTiles : 0;
}
template <int Halves>
inline constexpr int kCtaThreads = kTwoHalves<Halves> ? 3 * kComputeThreads : kThreads;
template <int Halves>
dim3 CtaShape() {
  return kTwoHalves<Halves> ? dim3(kComputeThreads, 3) : dim3(kThreads);
}
template <int Halves>
__device__ __forceinline__ bool IsCopying() {
  return kTwoHalves<Halves> ? OwnHalf() == 2 : threadIdx.x >= kComputeThreads;
}

// The shared memory of a CTA, in this order: stages, sums of the warps, barriers, notes, plan.
template <typename Element, int D, int HeadTiles, int Halves = 0>
struct SharedLayout {
  static constexpr int kParts = kTwoHalves<Halves> ? 2 : 1;
  static constexpr int kHeads = 8 * HeadTiles;
  static constexpr int kSumStride = D + 4;  // so that a warp's stores meet different banks
  static constexpr size_t kStageBytes = StageTokens<Element, D>::kStageBytes;
  static constexpr size_t kSumBytes = sizeof(float) * kParts * kComputeWarps * kHeads * kSumStride;
  struct Fixed {
    Barrier full[kMaxStages];
    Barrier empty[kMaxStages];
    StageNote notes[kMaxStages];
    float max[kParts * kComputeWarps][kHeads];
    float sum[kParts * kComputeWarps][kHeads];
  };
  static size_t Bytes(int32_t num_stages, int32_t num_lists) {
    return num_stages * kStageBytes + kSumBytes + sizeof(Fixed) + Plan::Bytes(num_lists);
  }
};

// A position in the ring of stages.
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

// Where the blocks of a stage are. Each lane of the copying warp finds this for one stage.
struct StageSource {
  StageNote note;
  int32_t block[kMaxEntries];  // physical; -1: none
  int32_t kv_head;
  int32_t first_token;  // first token in the block, if a block takes two stages
};

template <bool kBundled>
__device__ inline StageSource FindSource(const DecodeArgs& args, const Plan& plan, int32_t unit,
                                         int32_t end, int32_t stage) {
  const KvTile& tile = args.tile;
  const int32_t list = plan.ListOf(stage);
  const int32_t in_list = stage - plan.begin[list];
  const int32_t num_blocks = plan.num_blocks[list];
  const int32_t shift = args.block_shift;
  const int32_t in_block = (1 << shift) - 1;
  const int32_t entries = max(kStageTokens >> shift, 1);
  const ListRows rows = RowsOf<kBundled>(args, list);
  const int64_t global_list = static_cast<int64_t>(args.first_row) * tile.num_kv_heads + list;
  const uint32_t* blocks = args.pool_blocks + global_list * args.selection.capacity;
  const uint32_t* heads = args.selection.heads + global_list * args.selection.capacity;

  // Independent loads come first, since a CTA with a small share waits for them.
  uint32_t listed[kMaxEntries];
  uint32_t admitting[kMaxEntries];
  const int32_t first_entry = in_list * kStageTokens >> shift;
#pragma unroll
  for (int e = 0; e < kMaxEntries; ++e) {
    if constexpr (kBundled) {  // all blocks are read
      listed[e] = 0;
      admitting[e] = 0xffffffffu;
    } else {
      const bool full = args.window == 0 && e < entries && first_entry + e < num_blocks;
      listed[e] = full ? blocks[first_entry + e] : 0;
      admitting[e] = full ? heads[first_entry + e] : 0xffffffffu;
    }
  }
  const StepRow& row = args.step.rows[rows.last()];
  const bool tempers = args.gated && row.tempered.words > 0;
  uint32_t ordinals[kMaxEntries] = {};
  if (!kBundled && tempers) {
    const uint32_t* of_list = args.selection.blocks + global_list * args.selection.capacity;
#pragma unroll
    for (int e = 0; e < kMaxEntries; ++e) {
      const bool full = e < entries && first_entry + e < num_blocks;
      ordinals[e] = full ? of_list[first_entry + e] : 0;
    }
  }
  const int32_t num_full = (row.position + 1) >> shift;
  const int32_t tail = (row.position + 1) & in_block;
  const bool identity = kBundled || row.attention.admit_all || args.window > 0;
  const int32_t first_position = row.position - (kBundled ? rows.count - 1 : 0);
  const int32_t window_begin = WindowBegin(first_position, args.window);
  const int32_t first_block = window_begin >> shift;

  StageSource source;
  source.kv_head = rows.kv_head;
  source.first_token = in_list * kStageTokens & in_block;
  const uint32_t last = stage + 1 == min(end, plan.begin[list + 1]) ? WarpNote::kLast : 0u;
  int own_entry = -1;  // entry with the row's own token
#pragma unroll
  for (int e = 0; e < kMaxEntries; ++e) {
    const int32_t entry = first_entry + e;
    const bool is_tail = entry == num_blocks && tail > 0;
    // Of a block that no head keeps (ConfirmReads) nothing is read.
    source.block[e] = e < entries && entry < num_blocks && admitting[e] != 0
                          ? static_cast<int32_t>(listed[e])
                          : -1;
    if (e < entries && (is_tail || (identity && entry < num_blocks))) {
      source.block[e] =
          args.step.tables[row.table_begin + (is_tail ? num_full : first_block + entry)];
    }
    // The own token is the last one. It is in the tail, or else in the last full block, which may
    // not be listed.
    if (is_tail && e < entries) own_entry = e;
    if (tail == 0 && entry + 1 == num_blocks && source.block[e] >= 0 &&
        source.block[e] == args.step.tables[row.table_begin + num_full - 1]) {
      own_entry = e;
    }
  }
#pragma unroll
  for (int w = 0; w < kComputeWarps; ++w) {
    const int e = w * 16 >> shift;
    int32_t valid = 0;
    int32_t own = -1;
    uint32_t admitted = 0;
    uint32_t partial = 0;
    uint32_t tempered = 0;
    uint32_t before = 0;
    int32_t first_token = -WarpNote::kFarBehind;
#pragma unroll
    for (int i = 0; i < kMaxEntries; ++i) {
      if (i != e || source.block[i] < 0) continue;
      const bool is_tail = first_entry + i == num_blocks;
      const int32_t first = source.first_token + w * 16 - (i << shift);  // in the block
      valid = min(max((is_tail ? tail : tile.block_size) - first, 0), 16);
      // Only the first block has keys before the window; such a block is an entry or the tail.
      const int32_t outside =
          window_begin - (((is_tail ? num_full : first_block + first_entry + i) << shift) + first);
      if (outside >= 16) valid = 0;
      before = outside > 0 && outside < 16 ? static_cast<uint32_t>(outside) : 0u;
      if (i == own_entry) own = (row.position & in_block) - first;
      admitted = identity ? 0xffffffffu : admitting[i];
      partial = is_tail ? WarpNote::kTail : 0u;
      if constexpr (kBundled) {
        const int32_t ordinal = is_tail ? num_full : first_block + first_entry + i;
        const int32_t behind = (ordinal << shift) + first - first_position;
        first_token = max(behind, -WarpNote::kFarBehind);
        const bool inside = args.window == 0 || behind > kBundleRows - args.window;
        admitted = static_cast<uint32_t>(inside ? kBundleRows : behind + args.window);
      }
      if (tempers) {
        const int32_t ordinal = is_tail    ? num_full
                                : identity ? first_entry + i
                                           : static_cast<int32_t>(ordinals[i]);
        tempered = TemperedTokens(args.step, row.tempered, (ordinal << shift) + first);
      }
    }
    const auto place = kBundled ? static_cast<uint32_t>(first_token + WarpNote::kFarBehind) & 0x1f
                                : static_cast<uint32_t>(own >= 0 && own < 16 ? own : 16);
    source.note.warps[w] = {admitted,
                            static_cast<uint32_t>(valid) | place << WarpNote::kOwnShift | last |
                                partial | before << WarpNote::kBeforeShift |
                                tempered << WarpNote::kTemperedShift,
                            list, unit};
  }
  return source;
}

// The units of a CTA in their order: its own share, then small units as long as there are any.
class UnitQueue {
 public:
  __device__ UnitQueue(const DecodeArgs& args, const Units& units)
      : taken_(args.taken),
        units_(units),
        unit_(static_cast<int32_t>(blockIdx.x) < units.num_shares ? static_cast<int32_t>(blockIdx.x)
                                                                  : -1) {}
  __device__ int32_t unit() const { return unit_; }  // -1: none is left
  // The first stage of a unit, and of the one behind the last.
  __device__ int32_t Begin(int32_t unit) const { return units_.Begin(unit); }
  __device__ void Advance() {
    int32_t piece = units_.num_pieces;
    if (units_.num_pieces > 0 && threadIdx.x % 32 == 0) {
      piece = atomicAdd(taken_, 1);
      // Every CTA asks once in vain. The last such question ends the launch's use of the counter.
      if (piece == units_.num_pieces + static_cast<int32_t>(gridDim.x) - 1) *taken_ = 0;
    }
    piece = __shfl_sync(0xffffffffu, piece, 0);
    unit_ = piece < units_.num_pieces ? units_.num_shares + piece : -1;
  }

 private:
  int32_t* taken_;
  const Units& units_;
  int32_t unit_;
};

// Copies the tokens of one block, or of half a block, to the tokens from `to_token` on of a stage.
// All lanes call it.
template <typename Element, int D>
__device__ __forceinline__ void CopyEntry(const KvTile& tile, const std::byte* head,
                                          int32_t from_token, std::byte* stage, int32_t to_token,
                                          Barrier* full) {
  using Tokens = StageTokens<Element, D>;
  constexpr int kRowBytes = Tokens::kTileBytes / kStageTokens;
  if (tile.block_size == kStageTokens) return CopyTile(stage, head, Tokens::kStageBytes, full);
  const uint32_t tokens = min(tile.block_size, kStageTokens);
  const std::byte* from = head + from_token * kRowBytes;
  std::byte* to = stage + to_token * kRowBytes;
  CopyTile(to, from, tokens * kRowBytes, full);
  CopyTile(to + Tokens::kTileBytes, from + tile.tile_bytes(), tokens * kRowBytes, full);
  if constexpr (Tokens::kScaled) {
    from = head + 2 * tile.tile_bytes() + from_token;
    to = stage + 2 * Tokens::kTileBytes + to_token;
    CopyTile(to, from, tokens, full);
    CopyTile(to + kStageTokens, from + tile.block_size, tokens, full);
  }
}

// The work of the copying warp: fills the ring with the stages of the units that `queue` has, then
// tells the computing warps that there are no more.
template <typename Element, int D, int HeadTiles, int Halves = 0, typename Queue>
__device__ void CopyStages(const DecodeArgs& args, const Plan& plan, Queue queue, std::byte* stages,
                           typename SharedLayout<Element, D, HeadTiles, Halves>::Fixed& fixed) {
  using Layout = SharedLayout<Element, D, HeadTiles, Halves>;
  constexpr uint32_t kAll = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  const KvTile& tile = args.tile;
  const int32_t entry_tokens = min(tile.block_size, kStageTokens);
  const int32_t entries = kStageTokens / entry_tokens;
  const auto entry_bytes = static_cast<uint32_t>(Layout::kStageBytes) / entries;
  RingCursor cursor;
  const auto find = [&](int32_t unit, int32_t first) {
    const int32_t end = queue.Begin(unit + 1);
    return FindSource<(Halves > 0)>(args, plan, unit, end, min(first + lane, end - 1));
  };
  // Asking for a unit and finding its blocks take several trips to L2. Meanwhile the computing
  // warps have a full ring to work on.
  for (; queue.unit() >= 0; queue.Advance()) {
    const int32_t end = queue.Begin(queue.unit() + 1);
    for (int32_t first = queue.Begin(queue.unit()); first < end; first += 32) {
      const StageSource source = find(queue.unit(), first);
      for (int32_t i = 0; i < min(32, end - first); ++i) {
        Wait(&fixed.empty[cursor.slot], cursor.phase ^ 1);
        if (lane == i) fixed.notes[cursor.slot] = source.note;
        uint32_t bytes = 0;
#pragma unroll
        for (int e = 0; e < kMaxEntries; ++e) bytes += source.block[e] >= 0 ? entry_bytes : 0;
        bytes = __shfl_sync(kAll, bytes, i);
        __syncwarp();
        Barrier* full = &fixed.full[cursor.slot];
        ExpectBytes(full, bytes, i);
        std::byte* stage = stages + cursor.slot * Layout::kStageBytes;
        const int32_t kv_head = __shfl_sync(kAll, source.kv_head, i);
        const int32_t first_token = __shfl_sync(kAll, source.first_token, i);
#pragma unroll
        for (int e = 0; e < kMaxEntries; ++e) {
          if (e >= entries) break;
          const int32_t block = __shfl_sync(kAll, source.block[e], i);
          if (block < 0) continue;
          CopyEntry<Element, D>(tile, args.tiles + tile.K(block, kv_head), first_token, stage,
                                e * entry_tokens, full);
        }
        CommitCopies(full);
        cursor.Advance(args.num_stages);
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
