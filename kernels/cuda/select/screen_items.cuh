// The items of SelectBlocks' screening: how the work is cut into them, and how their records get
// into shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/step_view.h"
#include "kernels/cuda/select/block_mass.cuh"
#include "kernels/cuda/select/screen.cuh"

namespace eta::cuda {

inline constexpr int kScreenWarps = 4;  // warps that multiply; one more copies the records
inline constexpr int kScreenThreads = 32 * (kScreenWarps + 1);
inline constexpr int kWarpBlocks = 16;  // blocks per warp: the M side of a product
inline constexpr int kItemPairs = kScreenWarps * kWarpBlocks;  // pairs of a block and a KV head
inline constexpr int kMaxScreenStages = 8;                     // items in shared memory

struct ScreenArgs {
  StepView step;
  const float* q;
  int64_t q_stride;
  const float* thresholds;
  int64_t thresholds_stride;
  const std::byte* records;
  const float* centre;  // of kind outlier: [HKV, d] or null
  uint32_t* masks;
  unsigned long long* best;
  int64_t capacity;
  int32_t num_query_heads;
  int32_t num_stages;
  float scale;
  KvTile tile;
  MassScratch masses;  // for rows with relative thresholds
  MassRule rule;
};

// How an item is cut. A CTA screens one item at a time, and each of its warps takes 16 blocks of
// one KV head. If possible, warps take different KV heads of the same blocks (4, 2 or 1 at a time):
// a record is contiguous over KV heads, so one long piece of it is read.
struct ItemShape {
  ETA_HOST_DEVICE explicit ItemShape(const KvTile& tile)
      : kv_heads(tile.num_kv_heads % 4 == 0   ? 4
                 : tile.num_kv_heads % 2 == 0 ? 2
                                              : 1),
        blocks(kItemPairs / kv_heads),
        form(tile.form),
        vector_bytes(static_cast<uint32_t>(kv_heads * tile.Mu(1))),
        scalar_bytes(form == RecordForm::kNarrow
                         ? static_cast<uint32_t>(kv_heads * sizeof(RecordTrailer))
                         : 16) {}

  // Bytes of one block in shared memory: its vectors, then its scalars, then a gap. Lanes read 8
  // elements at a time. So with float16 two neighbouring blocks must fall into different halves of
  // the banks, and with 8 bits four of them into different quarters.
  ETA_HOST_DEVICE uint32_t stride() const {
    return form == RecordForm::kHalf ? vector_bytes + 64
                                     : (vector_bytes + scalar_bytes + 31) / 64 * 64 + 32;
  }
  ETA_HOST_DEVICE uint32_t bytes() const { return static_cast<uint32_t>(blocks) * stride(); }
  // Where the scalars of a KV head are among those of the item.
  ETA_HOST_DEVICE uint32_t Scalars(int32_t kv_head) const {
    return static_cast<uint32_t>(form == RecordForm::kNarrow
                                     ? kv_head % kv_heads *
                                           static_cast<int32_t>(sizeof(RecordTrailer))
                                     : kv_head % 4 * 4);
  }

  int32_t kv_heads;
  int32_t blocks;
  RecordForm form;
  uint32_t vector_bytes;
  uint32_t scalar_bytes;  // but with a RecordTrailer: the 16 bytes that hold those of the KV heads
};

struct ScreenItem {
  int32_t row;  // -1: no further item
  int32_t first_kv_head;
  int32_t first_block;
  int32_t num_full;  // N of the row, at least 1
};

// A row and its place in StepView::screen_begin.
struct ScreenRow {
  int32_t row;
  int32_t begin;
  int32_t units;
  int32_t position;
  int32_t table_begin;
};

// Walks the items of a share. Items are ordered by row, set of KV heads and blocks.
class ScreenCursor {
 public:
  // Walks items [position, end). `row` is the row of item `position`.
  __device__ ScreenCursor(const ScreenArgs& args, const ScreenRow& row, int32_t position,
                          int32_t end)
      : step_(args.step),
        num_kv_heads_(args.tile.num_kv_heads),
        block_size_(args.tile.block_size),
        shape_(args.tile),
        position_(position),
        end_(end) {
    Enter(row);
    const int32_t in_row = position - row.begin * num_kv_heads_;
    set_ = in_row / pieces_;
    piece_ = in_row % pieces_;
  }

  __device__ ScreenItem Next() {
    while (position_ < end_) {
      const int32_t first_block = piece_ * shape_.blocks;
      if (first_block < num_full_) {
        ++piece_;
        ++position_;
        return {row_, set_ * shape_.kv_heads, first_block, num_full_};
      }
      position_ += pieces_ - piece_;
      piece_ = 0;
      if (++set_ < num_kv_heads_ / shape_.kv_heads) continue;
      set_ = 0;
      if (position_ < end_) EnterNext();
    }
    return {-1, 0, 0, 0};
  }

  // The block table of the item that Next() returned last.
  __device__ int32_t table_begin() const { return table_begin_; }
  // The number of the row's blocks that were full before this step. The step brought at most as
  // many of the row's keys as it has rows.
  __device__ int32_t SettledBlocks() const {
    return max(num_keys_ - step_.num_rows, 0) / block_size_;
  }

 private:
  __device__ void EnterNext() {
    const int32_t* begin = step_.screen_begin;
    do {
      ++row_;
    } while (begin[row_ + 1] == begin[row_]);
    Enter({row_, begin[row_], begin[row_ + 1] - begin[row_], step_.rows[row_].position,
           step_.rows[row_].table_begin});
  }

  __device__ void Enter(const ScreenRow& row) {
    row_ = row.row;
    pieces_ = row.units * (kScreenBlocks / shape_.blocks);
    num_keys_ = row.position + 1;
    num_full_ = num_keys_ / block_size_;
    table_begin_ = row.table_begin;
  }

  const StepView& step_;
  int32_t num_kv_heads_;
  int32_t block_size_;
  ItemShape shape_;
  int32_t position_;
  int32_t end_;
  int32_t row_;
  int32_t set_;     // set of KV heads
  int32_t piece_;   // piece of ItemShape::blocks blocks
  int32_t pieces_;  // pieces of the row
  int32_t num_keys_;
  int32_t num_full_;
  int32_t table_begin_;
};

// The begin and the end of a CTA's share, and its first row.
struct ScreenShare {
  int32_t begin;
  int32_t end;
  ScreenRow row;
};

// Finds the CTA's share. All threads call it and meet in it. Each thread reads one row before
// anything depends on it, so this is one trip to memory for as many rows as there are threads.
__device__ __forceinline__ ScreenShare FindShare(const ScreenArgs& args, ScreenRow& found) {
  const volatile int32_t* begin = args.step.screen_begin;
  const volatile StepRow* rows = args.step.rows;
  const auto read = [&](int32_t r) -> ScreenRow {
    const int32_t row_begin = begin[r];
    return {r, row_begin, begin[r + 1] - row_begin, rows[r].position, rows[r].table_begin};
  };
  const int32_t num_units = begin[args.step.num_rows];
  auto r = static_cast<int32_t>(threadIdx.x);
  ScreenRow row = read(min(r, args.step.num_rows - 1));
  const auto num_kv_heads = static_cast<uint32_t>(args.tile.num_kv_heads);
  const uint32_t items = static_cast<uint32_t>(num_units) * num_kv_heads;
  const uint32_t each = items / gridDim.x;
  const uint32_t left = items % gridDim.x;
  const uint32_t first = blockIdx.x * each + min(blockIdx.x, left);
  const uint32_t end = first + each + (blockIdx.x < left ? 1 : 0);
  const auto unit = static_cast<int32_t>(first / num_kv_heads);
  while (r < args.step.num_rows) {
    if (row.begin <= unit && unit < row.begin + row.units) found = row;
    r += kScreenThreads;
    if (r < args.step.num_rows) row = read(r);
  }
  __syncthreads();
  return {static_cast<int32_t>(first), static_cast<int32_t>(end), found};
}

// Every lane copies a piece of its own, `bytes` long, a multiple of 16.
__device__ __forceinline__ void CopyOwn(std::byte* shared, const std::byte* global, uint32_t bytes,
                                        Barrier* barrier) {
#if __CUDA_ARCH__ >= 900
  if (bytes != 0) BulkCopyOnce(shared, global, bytes, barrier);
#else
  for (int lane = 0; lane < 32; ++lane) {
    const auto to = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(shared), lane);
    const auto from = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(global), lane);
    CopyTile(reinterpret_cast<void*>(to), reinterpret_cast<const std::byte*>(from),
             __shfl_sync(0xffffffffu, bytes, lane), barrier);
  }
#endif
}

// The ring of items between the warp that copies records and the warps that multiply.
struct ScreenRing {
  static constexpr int kAhead = 3;
  Barrier full[kMaxScreenStages];
  Barrier empty[kMaxScreenStages];
  // Physical blocks of the next items. The lane that copied a block's number reads it.
  int32_t physical[kAhead + 1][kItemPairs];
};

// Copies the records of all items. Records that were complete before the step are requested while
// the previous kernel still runs. Only those that this step may have written wait for it.
__device__ __forceinline__ void BringItems(const ScreenArgs& args, ScreenCursor cursor,
                                           ScreenRing& ring, std::byte* stages) {
  constexpr int kAhead = ScreenRing::kAhead;
  const ItemShape shape(args.tile);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  ScreenCursor ahead(cursor);
  const auto look_up = [&](int slot) {
    const ScreenItem item = ahead.Next();
    if (item.row >= 0) {
      const int32_t* table = args.step.tables + ahead.table_begin() + item.first_block;
#pragma unroll 1
      for (int32_t i = lane; i < min(item.num_full - item.first_block, shape.blocks); i += 32) {
        CopyAsync<4>(&ring.physical[slot][i], table + i);
      }
    }
    CommitGroup();
  };
#pragma unroll 1
  for (int slot = 0; slot < kAhead; ++slot) look_up(slot);
  // If the vectors are those of all KV heads, the scalars follow them directly.
  const bool whole = shape.kv_heads == args.tile.num_kv_heads;
  const uint32_t piece_bytes = shape.vector_bytes + (whole ? shape.scalar_bytes : 0);
  bool waited = false;
  int stage = 0;
  uint32_t round = 0;
  int slot = 0;
  for (ScreenItem item = cursor.Next(); item.row >= 0; item = cursor.Next()) {
    look_up((slot + kAhead) % (kAhead + 1));
    WaitGroups<kAhead>();
    if (round != 0) Wait(&ring.empty[stage], (round - 1) & 1);
    const int32_t blocks = min(item.num_full - item.first_block, shape.blocks);
    if (!waited && item.first_block + blocks > cursor.SettledBlocks()) {
      WaitForPrevious();
      waited = true;
    }
    ExpectBytes(&ring.full[stage],
                static_cast<uint32_t>(blocks) * (shape.vector_bytes + shape.scalar_bytes));
#pragma unroll 1
    for (int32_t first = 0; first < blocks; first += 32) {
      const int32_t i = first + lane;
      const bool copies = i < blocks;
      const std::byte* record =
          args.records +
          static_cast<size_t>(copies ? ring.physical[slot][i] : 0) * args.tile.record_bytes();
      std::byte* to = stages + stage * shape.bytes() + i * shape.stride();
      CopyOwn(to, record + args.tile.Mu(item.first_kv_head), copies ? piece_bytes : 0,
              &ring.full[stage]);
      if (!whole) {
        CopyOwn(to + shape.vector_bytes, record + args.tile.Scalars(item.first_kv_head) / 16 * 16,
                copies ? shape.scalar_bytes : 0, &ring.full[stage]);
      }
    }
    CommitCopies(&ring.full[stage]);
    slot = (slot + 1) % (kAhead + 1);
    if (++stage == args.num_stages) {
      stage = 0;
      ++round;
    }
  }
}

}  // namespace eta::cuda
