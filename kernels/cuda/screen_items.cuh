// How SelectBlocks' work is cut into items and dealt out.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/step_view.h"

namespace eta::cuda {

inline constexpr int kScreenWarps = 4;
inline constexpr int kScreenThreads = 32 * kScreenWarps;
inline constexpr int kWarpBlocks = 16;                         // the M side of a product
inline constexpr int kItemPairs = kScreenWarps * kWarpBlocks;  // of a block and a KV head

struct ScreenArgs {
  StepView step;
  const float* q;
  int64_t q_stride;
  const float* thresholds;
  int64_t thresholds_stride;
  const std::byte* records;
  uint32_t* masks;
  unsigned long long* best;
  int64_t capacity;
  int32_t num_query_heads;
  uint32_t record_bytes;
  float scale;
  KvTile tile;
};

// How an item, which is what a CTA screens at a time, is cut: each warp takes 16 blocks of one KV
// head. Warps take different KV heads of the same blocks where they can (4, 2 or 1 at a time), so
// that of a record, which is contiguous over KV heads, one long piece is read.
struct ItemShape {
  ETA_HOST_DEVICE explicit ItemShape(const KvTile& tile)
      : kv_heads(tile.num_kv_heads % 4 == 0   ? 4
                 : tile.num_kv_heads % 2 == 0 ? 2
                                              : 1),
        blocks(kItemPairs / kv_heads) {}

  int32_t kv_heads;
  int32_t blocks;
};

// What a warp screens at a time.
struct ScreenItem {
  int32_t row;  // -1: no further item
  int32_t kv_head;
  int32_t first_block;
  int32_t num_full;  // N of the row, more than first_block
};

// A row and its place in StepView::screen_begin.
struct ScreenRow {
  int32_t row;
  int32_t begin;
  int32_t units;
  int32_t position;
  int32_t table_begin;
};

// Walks what a warp does of a share's items, which are ordered by row, set of KV heads and blocks.
class ScreenCursor {
 public:
  // Of items [position, end); `row` is the one that `position` falls into.
  __device__ ScreenCursor(const ScreenArgs& args, const ScreenRow& row, int32_t position,
                          int32_t end)
      : step_(args.step),
        num_kv_heads_(args.tile.num_kv_heads),
        block_size_(args.tile.block_size),
        shape_(args.tile),
        own_kv_head_(static_cast<int32_t>(threadIdx.x / 32) % shape_.kv_heads),
        own_block_(static_cast<int32_t>(threadIdx.x / 32) / shape_.kv_heads * kWarpBlocks),
        position_(position),
        end_(end) {
    Enter(row);
    const int32_t in_row = position - row.begin * num_kv_heads_;
    set_ = in_row / pieces_;
    piece_ = in_row % pieces_;
  }

  __device__ ScreenItem Next() {
    while (position_ < end_) {
      const int32_t first_block = piece_ * shape_.blocks + own_block_;
      if (first_block < num_full_) {
        ++piece_;
        ++position_;
        return {row_, set_ * shape_.kv_heads + own_kv_head_, first_block, num_full_};
      }
      position_ += pieces_ - piece_;
      piece_ = 0;
      if (++set_ < num_kv_heads_ / shape_.kv_heads) continue;
      set_ = 0;
      if (position_ < end_) EnterNext();
    }
    return {-1, 0, 0, 0};
  }

  // Of the item that Next() returned last.
  __device__ int32_t table_begin() const { return table_begin_; }
  // The row's blocks that were full before this step: of its keys, the step brought no more than it
  // has rows.
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
  int32_t own_kv_head_;
  int32_t own_block_;
  int32_t position_;
  int32_t end_;
  int32_t row_;
  int32_t set_;     // of KV heads
  int32_t piece_;   // of ItemShape::blocks blocks
  int32_t pieces_;  // of the row
  int32_t num_keys_;
  int32_t num_full_;
  int32_t table_begin_;
};

// Where the share of a CTA begins and ends, and the row it begins in.
struct ScreenShare {
  int32_t begin;
  int32_t end;
  ScreenRow row;
};

// All threads call it, and all meet in it. Each thread reads a row before anything depends on it,
// so that this is one trip to memory for as many rows as there are threads.
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

}  // namespace eta::cuda
