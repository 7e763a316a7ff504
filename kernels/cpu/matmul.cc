// MatMul computes out [rows, N] = x [rows, K] * weight [N, K]^T (+ out, if accumulate). Embed
// copies each row's token vector [D] from the table [V, D]. Several products, each with a weight of
// its own, may run side by side (MultiplyPanels).
//
// Few rows (decode): reading weights binds. Each panel is read once for all rows and widened in
// registers. With few rows several panels run side by side; otherwise the chain of additions would
// be slower than memory. Many rows (prefill): arithmetic binds. A panel is widened once into a
// thread's scratch and multiplied with all row blocks of the task, which stay in L2. Both ways an
// element is the same sum in the same order (gemm_tile-inl.h), so the bits agree.
//
// With AMX the prefill rows of a step go to prefill/amx_matmul.cc instead, however many they are.
// Weights in blocks: packed/packed_matmul.cc.

#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/prefill/amx.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/panel_row-inl.h"
#include "kernels/cpu/simd/product_output-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

// Above this many rows it pays to widen a panel in advance.
constexpr int64_t kFewRows = 2 * kTileRows;

// Bytes of a task's row blocks, which share L2 with a panel.
constexpr size_t kRowGroupBytes = size_t{1} << 20;

// The distance in bytes at which a panel is requested ahead of the product.
constexpr size_t kPrefetchBytes = 1024;

template <Storage kStorage, int kPanels>
struct PanelRows {
  const std::byte* first;
  size_t panel_bytes;
  size_t lane;

  HWY_INLINE void Load(size_t k, Floats (&columns)[2 * kPanels]) const {
    constexpr size_t kRowBytes = kPanelWidth * StorageBytes(kStorage);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* row = first + static_cast<size_t>(p) * panel_bytes + k * kRowBytes;
      for (size_t line = 0; line < kRowBytes; line += 64) {
        hwy::Prefetch(row + line + kPrefetchBytes);
      }
      LoadColumns<kStorage>(row, lane, columns[2 * p], columns[2 * p + 1]);
    }
  }
};

// A float32 panel that many row blocks share: stored as float32, or widened in advance.
struct WidePanelRows {
  const float* first;
  size_t lane;

  HWY_INLINE void Load(size_t k, Floats (&columns)[2]) const {
    LoadColumns<Storage::kFloat32>(reinterpret_cast<const std::byte*>(first + k * kPanelWidth),
                                   lane, columns[0], columns[1]);
  }
};

// Multiplies rows [row, row + num_rows) of one block, num_rows <= kRows. `a` is packed [K][kRows].
template <int kRows, int kPanels, class LoadB>
HWY_NOINLINE void Product(const float* a, size_t depth, LoadB b, const Output& output, int64_t row,
                          int64_t num_rows, int64_t panel) {
  for (b.lane = 0; b.lane < kHalfPanel; b.lane += kLanes) {
    Floats acc[kRows][2 * kPanels];
    ClearTile(acc);
    MultiplyTile<kRows, 2 * kPanels, kRows, 1>(a, depth, b, acc);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if (r >= num_rows) break;
#pragma GCC unroll 8
      for (int v = 0; v < 2 * kPanels; ++v) {
        const int64_t channel = panel * kPanelCols + static_cast<int64_t>(b.lane) +
                                v * static_cast<int64_t>(kHalfPanel);
        StoreColumns(acc[r][v], output, row + r, channel);
      }
    }
  }
}

// The number of panels that run side by side for this many rows.
constexpr int PanelsAtOnce(int rows) {
  const int fit = kMaxAccumulators / (2 * rows);
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// The next tile height that exists as code. A block is padded to it.
constexpr int Height(int64_t rows) {
  for (const int height : {1, 2, 3, 4, 6, 8}) {
    if (rows <= height && height < kTileRows) return height;
  }
  return kTileRows;
}

// Calls fn.operator()<kRows>() for a height.
template <class Fn>
HWY_INLINE void WithHeight(int height, const Fn& fn) {
  switch (height) {
    case 1:
      return fn.template operator()<1>();
    case 2:
      return fn.template operator()<2>();
    case 3:
      return fn.template operator()<3>();
    case 4:
      return fn.template operator()<4>();
#if HWY_MAX_BYTES >= 64
    case 6:
      return fn.template operator()<6>();
    case 8:
      return fn.template operator()<8>();
#endif
    default:
      return fn.template operator()<kTileRows>();
  }
}

// Blocks of rows, one after the other, each packed [K][height].
struct RowBlocks {
  float* packed;
  size_t depth;
  int64_t num_rows;

  int64_t count() const { return (num_rows + kTileRows - 1) / kTileRows; }
  int64_t row(int64_t block) const { return block * kTileRows; }
  int64_t rows(int64_t block) const { return std::min<int64_t>(kTileRows, num_rows - row(block)); }
  int height(int64_t block) const { return Height(rows(block)); }
  const float* data(int64_t block) const {
    return packed + static_cast<size_t>(row(block)) * depth;
  }
};

// The floats of all blocks.
size_t PackedSize(const RowBlocks& blocks) {
  const int64_t last = blocks.count() - 1;
  if (last < 0) return 0;
  return static_cast<size_t>(blocks.row(last) + blocks.height(last)) * blocks.depth;
}

void PackBlock(const PanelProduct& product, int64_t row, int64_t num_rows, float* to) {
  const auto padded = static_cast<size_t>(Height(num_rows));
  const auto depth = static_cast<size_t>(product.x.cols);
  const hn::CappedTag<float, 4> d4;
  size_t r = 0;
  for (; r + 4 <= static_cast<size_t>(num_rows) && hn::Lanes(d4) == 4; r += 4) {
    const float* from[4];
    for (size_t i = 0; i < 4; ++i) from[i] = product.row(row + static_cast<int64_t>(r + i));
    size_t k = 0;
    for (; k + 4 <= depth; k += 4) {
      const auto r0 = hn::LoadU(d4, from[0] + k);
      const auto r1 = hn::LoadU(d4, from[1] + k);
      const auto r2 = hn::LoadU(d4, from[2] + k);
      const auto r3 = hn::LoadU(d4, from[3] + k);
      const auto low02 = hn::InterleaveLower(d4, r0, r2);
      const auto low13 = hn::InterleaveLower(d4, r1, r3);
      const auto high02 = hn::InterleaveUpper(d4, r0, r2);
      const auto high13 = hn::InterleaveUpper(d4, r1, r3);
      float* at = to + k * padded + r;
      hn::StoreU(hn::InterleaveLower(d4, low02, low13), d4, at);
      hn::StoreU(hn::InterleaveUpper(d4, low02, low13), d4, at + padded);
      hn::StoreU(hn::InterleaveLower(d4, high02, high13), d4, at + 2 * padded);
      hn::StoreU(hn::InterleaveUpper(d4, high02, high13), d4, at + 3 * padded);
    }
    for (; k < depth; ++k) {
      for (size_t i = 0; i < 4; ++i) to[k * padded + r + i] = from[i][k];
    }
  }
  for (; r < padded; ++r) {
    const float* from =
        static_cast<int64_t>(r) < num_rows ? product.row(row + static_cast<int64_t>(r)) : nullptr;
    for (size_t k = 0; k < depth; ++k) to[k * padded + r] = from != nullptr ? from[k] : 0.0f;
  }
}

template <int kRows, Storage kStorage>
void FewRowsTile(const RowBlocks& blocks, int64_t block, const PanelMatrix& weight,
                 const Output& output, int64_t begin, int64_t end) {
  constexpr int kPanels = PanelsAtOnce(kRows);
  int64_t panel = begin;
  for (; panel + kPanels <= end; panel += kPanels) {
    Product<kRows, kPanels>(
        blocks.data(block), blocks.depth,
        PanelRows<kStorage, kPanels>{weight.panel(panel), weight.panel_bytes(), 0}, output,
        blocks.row(block), blocks.rows(block), panel);
  }
  for (; kPanels > 1 && panel < end; ++panel) {
    Product<kRows, 1>(blocks.data(block), blocks.depth,
                      PanelRows<kStorage, 1>{weight.panel(panel), weight.panel_bytes(), 0}, output,
                      blocks.row(block), blocks.rows(block), panel);
  }
}

void FewRowsPanels(const RowBlocks& blocks, const PanelMatrix& weight, const Output& output,
                   int64_t begin, int64_t end) {
  for (int64_t block = 0; block < blocks.count(); ++block) {
    WithHeight(blocks.height(block), [&]<int kRows>() {
      switch (weight.storage()) {
        case Storage::kFloat32:
          return FewRowsTile<kRows, Storage::kFloat32>(blocks, block, weight, output, begin, end);
        case Storage::kFloat16:
          return FewRowsTile<kRows, Storage::kFloat16>(blocks, block, weight, output, begin, end);
        case Storage::kBFloat16:
          return FewRowsTile<kRows, Storage::kBFloat16>(blocks, block, weight, output, begin, end);
      }
    });
  }
}

template <Storage kStorage>
void Widen(const std::byte* from, size_t depth, float* to) {
  const Float d;
  for (size_t k = 0; k < depth; ++k) {
    const std::byte* row = from + k * kPanelWidth * StorageBytes(kStorage);
    for (size_t lane = 0; lane < kHalfPanel; lane += kLanes) {
      Floats low;
      Floats high;
      LoadColumns<kStorage>(row, lane, low, high);
      hn::StoreU(low, d, to + k * kPanelWidth + lane);
      hn::StoreU(high, d, to + k * kPanelWidth + kHalfPanel + lane);
    }
  }
}

// The panel as float32: as it is stored, or widened into this thread's scratch.
const float* WidePanel(const PanelMatrix& weight, int64_t panel) {
  const std::byte* from = weight.panel(panel);
  const Storage storage = weight.storage();
  if (storage == Storage::kFloat32) return reinterpret_cast<const float*>(from);
  thread_local Scratch scratch;
  const auto depth = static_cast<size_t>(weight.cols());
  float* wide = scratch.Reserve<float>(depth * kPanelWidth);
  if (storage == Storage::kFloat16) {
    Widen<Storage::kFloat16>(from, depth, wide);
  } else {
    Widen<Storage::kBFloat16>(from, depth, wide);
  }
  return wide;
}

void ManyRowsPanel(const RowBlocks& blocks, int64_t begin, int64_t end, const PanelMatrix& weight,
                   const Output& output, int64_t panel) {
  const WidePanelRows rows{WidePanel(weight, panel), 0};
  for (int64_t block = begin; block < end; ++block) {
    WithHeight(blocks.height(block), [&]<int kRows>() {
      Product<kRows, 1>(blocks.data(block), blocks.depth, rows, output, blocks.row(block),
                        blocks.rows(block), panel);
    });
  }
}

// A product, and where its blocks and tasks stand among those of all products.
struct Job {
  const PanelProduct* product;
  RowBlocks blocks;
  int64_t first_block;
  int64_t first_task;
  int64_t panels_per_task;   // of few rows; 0: there are many
  int64_t blocks_per_group;  // of many rows
};

// At best four panels run side by side. About four tasks per thread even out the threads' speeds.
int64_t PanelsPerTask(int64_t num_panels, int64_t num_threads) {
  const int64_t least = num_panels >= 4 * num_threads ? 4 : 1;
  return std::max(least, num_panels / (4 * num_threads) / 4 * 4);
}

int64_t BlocksPerGroup(size_t depth) {
  const size_t block_bytes = std::max<size_t>(1, depth * kTileRows * sizeof(float));
  return static_cast<int64_t>(std::max<size_t>(2, kRowGroupBytes / block_bytes));
}

int64_t NumTasks(const Job& job) {
  const int64_t num_panels = job.product->weight->num_panels();
  if (job.panels_per_task > 0) return (num_panels + job.panels_per_task - 1) / job.panels_per_task;
  return (job.blocks.count() + job.blocks_per_group - 1) / job.blocks_per_group * num_panels;
}

void RunTask(const Job& job, int64_t task, bool accumulate) {
  const PanelMatrix& weight = *job.product->weight;
  const Output output{job.product->out, accumulate};
  if (job.panels_per_task > 0) {
    const int64_t begin = task * job.panels_per_task;
    const int64_t end = std::min(begin + job.panels_per_task, weight.num_panels());
    FewRowsPanels(job.blocks, weight, output, begin, end);
  } else {
    const int64_t begin = task / weight.num_panels() * job.blocks_per_group;
    const int64_t end = std::min(begin + job.blocks_per_group, job.blocks.count());
    ManyRowsPanel(job.blocks, begin, end, weight, output, task % weight.num_panels());
  }
}

void MultiplyPanelsOnTarget(const Context& context, std::span<const PanelProduct> products,
                            bool accumulate) {
  thread_local Scratch job_scratch;
  thread_local Scratch row_scratch;
  const std::span<Job> jobs(job_scratch.Reserve<Job>(products.size()), products.size());
  int64_t num_panels = 0;
  int64_t num_blocks = 0;
  size_t packed_size = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const PanelProduct& product = products[i];
    const auto depth = static_cast<size_t>(product.weight->cols());
    jobs[i] = {&product, {nullptr, depth, product.out.rows}, num_blocks, 0, 0, 0};
    num_panels += product.weight->num_panels();
    num_blocks += jobs[i].blocks.count();
    packed_size += PackedSize(jobs[i].blocks);
  }
  float* packed = row_scratch.Reserve<float>(packed_size);
  int64_t num_tasks = 0;
  for (Job& job : jobs) {
    job.blocks.packed = packed;
    packed += PackedSize(job.blocks);
    if (job.blocks.num_rows <= kFewRows) {
      job.panels_per_task = PanelsPerTask(num_panels, context.workers.num_threads());
    } else {
      job.blocks_per_group = BlocksPerGroup(job.blocks.depth);
    }
    job.first_task = num_tasks;
    num_tasks += NumTasks(job);
  }
  context.workers.Run(num_blocks, [&](int64_t index, int) {
    const Job& job = JobOf(std::span<const Job>(jobs), index, &Job::first_block);
    const RowBlocks& blocks = job.blocks;
    const int64_t block = index - job.first_block;
    PackBlock(*job.product, blocks.row(block), blocks.rows(block),
              blocks.packed + static_cast<size_t>(blocks.row(block)) * blocks.depth);
  });
  context.workers.Run(num_tasks, [&](int64_t task, int) {
    const Job& job = JobOf(std::span<const Job>(jobs), task, &Job::first_task);
    RunTask(job, task - job.first_task, accumulate);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(MultiplyPanelsOnTarget);

namespace {

// Rows [begin, begin + count) of both sides.
MatMulParams SomeRows(MatMulParams params, int64_t begin, int64_t count) {
  params.x = params.x.Rows(begin, count);
  params.out = params.out.Rows(begin, count);
  return params;
}

void MultiplyRows(const Context& context, const MatMulParams& params) {
  if (params.out.rows == 0) return;
  const auto& weight = static_cast<const PanelMatrix&>(*params.weight);
  const PanelProduct product = {params.x, nullptr, &weight, params.out};
  MultiplyPanels(context, {&product, 1}, params.accumulate);
}

void FloatMatMul(const Context& context, const MatMulParams& params) {
  if (!context.amx || !params.rows_of_step) return MultiplyRows(context, params);
  const std::span<const SequenceRows> sequences = context.batch.sequences;
  for (size_t i = 0; i < sequences.size();) {
    const int64_t begin = sequences[i].row_begin;
    const RowKind kind = sequences[i].kind;
    int64_t end = begin;
    for (; i < sequences.size() && sequences[i].kind == kind; ++i) end += sequences[i].num_rows;
    const MatMulParams rows = SomeRows(params, begin, end - begin);
    if (kind == RowKind::kPrefill) {
      AmxMatMul(context, rows);
    } else {
      MultiplyRows(context, rows);
    }
  }
}

}  // namespace

void MultiplyPanels(const Context& context, std::span<const PanelProduct> products,
                    bool accumulate) {
  HWY_DYNAMIC_DISPATCH(MultiplyPanelsOnTarget)(context, products, accumulate);
}

void MatMul(const Context& context, const MatMulParams& params) {
  const auto& weight = static_cast<const StackedMatrix&>(*params.weight);
  if (params.out.rows > 0 && !weight.packed_parts().empty()) {
    const PackedProduct product = {params.x, nullptr, weight.packed_parts(), params.out};
    PackedMatMul(context, {&product, 1}, params.accumulate);
  }
  for (const StackedMatrix::FloatPart& part : weight.float_parts()) {
    MatMulParams floats = params;
    floats.weight = part.weight.get();
    floats.out = params.out.Columns(part.first, part.weight->rows());
    FloatMatMul(context, floats);
  }
}

void Embed(const Context& context, const EmbedParams& params) {
  const auto& table = static_cast<const StackedMatrix&>(*params.table);
  constexpr int64_t kRowsPerTask = 16;
  const int64_t rows = context.batch.num_rows();
  context.workers.Run((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t r = task * kRowsPerTask; r < end; ++r) {
      float* const row = params.out.row(r);
      table.ReadRow(context.batch.tokens[static_cast<size_t>(r)], row);
      if (params.scale == 1.0f) continue;
      for (int64_t i = 0; i < params.out.cols; ++i) row[i] *= params.scale;
    }
  });
}

}  // namespace eta::cpu
#endif  // HWY_ONCE
