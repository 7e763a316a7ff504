// Products of packed weights (eta-semantics.md, "Packed weights").
//
// A group of a panel is unpacked and multiplied with up to 16 rows of activations at once. So few
// rows (decode) stream the weights once, and of many rows (prefill) unpacking is a small share. A
// task takes some panels and as many tiles of rows as stay in L2 beside a panel. With AMX, tiles of
// 16 rows are multiplied there: to the same bits, so rows of decode and prefill go the same way.

#include "kernels/cpu/packed/packed_matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/packed/quantized_rows.h"
#include "kernels/cpu/targets.h"
#include "kernels/weights/activation_groups.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/packed/packed_matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/packed/amx_product-inl.h"
#include "kernels/cpu/packed/panel_group-inl.h"
#include "kernels/cpu/packed/panel_product-inl.h"
#include "kernels/cpu/simd/product_output-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {
namespace {

// Rows that share an unpacked group. Their sums stay in registers or, of fewer registers, in L1.
constexpr int64_t kTallestTile = HWY_MAX_BYTES >= 64 ? 16 : 8;

// Bytes of a task's rows, which share L2 with a panel.
constexpr size_t kRowGroupBytes = size_t{1} << 20;

// Groups of activations below which a task of rounding them is not worth another thread.
constexpr size_t kGroupsOfTask = 128;

constexpr size_t kVectors = kGroupNumbers / kLanes;

// The largest magnitude of a group; infinity or NaN if it has one.
float Largest(const float* group) {
  const Float d;
  const Int di;
  Ints largest = hn::Zero(di);  // magnitudes are ordered as their bits are
  for (size_t v = 0; v < kVectors; ++v) {
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(d, group + v * kLanes))));
  }
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

// The sums of the lanes of two vectors, in the lower half's first lane and the upper half's.
HWY_INLINE Ints SumsOfLanes(Ints a, Ints b) {
  const Int di;
  Ints sum = hn::Add(hn::ConcatLowerLower(di, b, a), hn::ConcatUpperUpper(di, b, a));
#if HWY_MAX_BYTES >= 64
  sum = hn::Add(sum, hn::SwapAdjacentBlocks(sum));
#endif
#if HWY_MAX_BYTES >= 32
  sum = hn::Add(sum, hn::Shuffle1032(sum));
#endif
  return hn::Add(sum, hn::Shuffle2301(sum));
}

// As QuantizeActivations(). `most` is Largest() of the group.
void QuantizeGroup(const float* from, float most, QuantizedGroup& to) {
  const Float d;
  const Int di;
  const hn::Rebind<int8_t, Float> d8;
  const float scale = most / 127.0f;
  if (!std::isfinite(most) || scale < kLeastActivationScale) {
    to = {};
    to.start.fill(kFirstSum);
    if (!std::isfinite(most)) to.scale = std::numeric_limits<float>::quiet_NaN();
    to.scaled_sum = to.scale;
    return;
  }
  const Floats inverse = hn::Set(d, 1.0f / scale);
  Ints sums[2] = {hn::Zero(di), hn::Zero(di)};
  auto* bytes = reinterpret_cast<int8_t*>(to.x.data());
  for (size_t v = 0; v < kVectors; ++v) {
    const Ints rounded = hn::NearestInt(hn::Mul(hn::LoadU(d, from + v * kLanes), inverse));
    hn::StoreU(hn::DemoteTo(d8, rounded), d8, bytes + v * kLanes);
    Ints& sum = sums[2 * v / kVectors];
    sum = hn::Add(sum, rounded);
  }
  const Ints both = SumsOfLanes(sums[0], sums[1]);
  const int32_t first = hn::GetLane(both);
  const int32_t second = hn::GetLane(hn::UpperHalf(hn::Half<Int>(), both));
  const int32_t all = first + second;
  to.scale = scale;
  to.scaled_sum = scale * static_cast<float>(all);
  to.start = {kFirstSum - 8 * all,    kFirstSum - 16 * all,    kFirstSum - 128 * all,
              kFirstSum - 32 * first, kFirstSum - 32 * second, kFirstSum};
}

// `count` groups, `height` apart. Their maxima come first, since from a maximum to the sums is a
// long chain, and shorter ones overlap better.
QuantizedGroup* QuantizeGroups(const float* from, size_t count, int64_t height,
                               QuantizedGroup* to) {
  constexpr size_t kTogether = 16;
  for (size_t g = 0; g < count; g += kTogether) {
    const size_t end = std::min(count, g + kTogether);
    float most[kTogether];
    for (size_t i = g; i < end; ++i) most[i - g] = Largest(from + i * kGroupNumbers);
    for (size_t i = g; i < end; ++i, to += height) {
      QuantizeGroup(from + i * kGroupNumbers, most[i - g], *to);
    }
  }
  return to;
}

// The row's groups, `height` apart.
void QuantizeRow(const float* row, size_t cols, int64_t height, QuantizedGroup* to) {
  const size_t whole = cols / kGroupNumbers;
  to = QuantizeGroups(row, whole, height, to);
  const size_t k = whole * kGroupNumbers;
  if (k == cols) return;
  float edge[kGroupNumbers] = {};
  std::memcpy(edge, row + k, (cols - k) * sizeof(float));
  QuantizeGroups(edge, 1, height, to);
}

// Rows as tiles of quantised groups.
struct QuantizedTiles {
  QuantizedGroup* groups;
  size_t num_groups;
  RowTiles tiles;

  const QuantizedGroup* tile(int64_t i) const {
    return groups + static_cast<size_t>(tiles.tile(i).row) * num_groups;
  }
};

// Panels and tiles of a task.
struct Part {
  int64_t first_panel;
  int64_t last_panel;  // exclusive
  int64_t first_tile;
  int64_t last_tile;
};

// One tile times a panel.
template <GgmlType kType, bool kVnni>
void MultiplyTile(const QuantizedGroup* groups, const RowTile& tile, const BlockRows& weight,
                  int64_t panel, const Output& output) {
  const auto multiply = [&]<int kRows>() HWY_ATTR {
    Product<kType, kRows, kVnni>(groups, weight, panel, output, tile.row, tile.rows,
                                 panel * int64_t{kPackedChannels});
  };
  switch (tile.height) {
    case 1:
      return multiply.template operator()<1>();
    case 2:
      return multiply.template operator()<2>();
    case 4:
      return multiply.template operator()<4>();
    case 8:
      return multiply.template operator()<8>();
#if HWY_MAX_BYTES >= 64
    case 16:
      return multiply.template operator()<16>();
#endif
  }
}

template <GgmlType kType, bool kVnni>
void MultiplyPart(const QuantizedTiles& rows, const BlockRows& weight, const Output& output,
                  const Part& part) {
  for (int64_t panel = part.first_panel; panel < part.last_panel; ++panel) {
    for (int64_t i = part.first_tile; i < part.last_tile; ++i) {
      MultiplyTile<kType, kVnni>(rows.tile(i), rows.tiles.tile(i), weight, panel, output);
    }
  }
}

#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64
// The same with AMX for tiles of 16 rows. Only the last tiles of all are lower.
template <GgmlType kType>
void MultiplyPartWithAmx(const QuantizedTiles& rows, const BlockRows& weight, const Output& output,
                         const Part& part) {
  static_assert(kTallestTile == kAmxRows);
  int64_t end = part.first_tile;
  while (end < part.last_tile && rows.tiles.tile(end).height == kTallestTile) ++end;
  MultiplyPart<kType, true>(rows, weight, output,
                            {part.first_panel, part.last_panel, end, part.last_tile});
  if (end == part.first_tile) return;
  thread_local Scratch scratch;
  auto* numbers = scratch.Reserve<uint8_t>(rows.num_groups * kUnpackedBytes);
  const AmxTiles in_use(AmxDepthOf<kType>());
  for (int64_t panel = part.first_panel; panel < part.last_panel; ++panel) {
    UnpackPanel<kType>(weight, panel, numbers);
    for (int64_t i = part.first_tile; i < end; ++i) {
      const RowTile tile = rows.tiles.tile(i);
      AmxProduct<kType>(rows.tile(i), weight, panel, numbers, output, tile.row, tile.rows,
                        panel * int64_t{kPackedChannels});
    }
  }
}
#endif

// The ways in which this target multiplies.
enum class Way { kPlain, kVnni, kAmx };

template <GgmlType kType>
void MultiplyPart([[maybe_unused]] Way way, const QuantizedTiles& rows, const BlockRows& weight,
                  const Output& output, const Part& part) {
#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64
  if (way == Way::kAmx) return MultiplyPartWithAmx<kType>(rows, weight, output, part);
#endif
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  if (way == Way::kVnni) return MultiplyPart<kType, true>(rows, weight, output, part);
#endif
  return MultiplyPart<kType, false>(rows, weight, output, part);
}

void MultiplyPart(Way way, const QuantizedTiles& rows, const BlockRows& weight,
                  const Output& output, const Part& part) {
  switch (weight.layout().type) {
    case GgmlType::kQ4_0:
      return MultiplyPart<GgmlType::kQ4_0>(way, rows, weight, output, part);
    case GgmlType::kQ4_1:
      return MultiplyPart<GgmlType::kQ4_1>(way, rows, weight, output, part);
    case GgmlType::kQ5_0:
      return MultiplyPart<GgmlType::kQ5_0>(way, rows, weight, output, part);
    case GgmlType::kQ5_1:
      return MultiplyPart<GgmlType::kQ5_1>(way, rows, weight, output, part);
    case GgmlType::kQ4_K:
      return MultiplyPart<GgmlType::kQ4_K>(way, rows, weight, output, part);
    case GgmlType::kQ5_K:
      return MultiplyPart<GgmlType::kQ5_K>(way, rows, weight, output, part);
    case GgmlType::kQ6_K:
      return MultiplyPart<GgmlType::kQ6_K>(way, rows, weight, output, part);
    case GgmlType::kMXFP4:
      return MultiplyPart<GgmlType::kMXFP4>(way, rows, weight, output, part);
    default:
      return MultiplyPart<GgmlType::kQ8_0>(way, rows, weight, output, part);
  }
}

Way WayOfThisProcessor([[maybe_unused]] const Context& context) {
#if HWY_TARGET == HWY_AVX3
  if (HasVnni()) return context.amx && HasAmxBytes() ? Way::kAmx : Way::kVnni;
#elif HWY_TARGET == HWY_AVX2
  if (HasAvxVnni()) return Way::kVnni;
#endif
  return Way::kPlain;
}

// The rows of a product, and where they stand among those of all products' tiles.
struct RowJob {
  const PackedProduct* product;
  QuantizedTiles rows;
  int64_t first_row;
};

// A part of a product, and where its tasks stand among those of all parts.
struct PartJob {
  const RowJob* job;
  const PackedPart* part;
  int64_t tiles;        // of a task
  int64_t panels;       // of a task
  int64_t panel_tasks;  // that have the same tiles
  int64_t first_task;
};

// Writes row `row` of a product's tiles; one that is none is zeros.
void QuantizeTileRow(const RowJob& job, int64_t row) {
  const RowTiles& tiles = job.rows.tiles;
  const RowTile tile = tiles.tile(tiles.TileOf(row));
  QuantizedGroup* to =
      job.rows.groups + static_cast<size_t>(tile.row) * job.rows.num_groups + (row - tile.row);
  if (row < job.product->out.rows) {
    const auto cols = static_cast<size_t>(job.product->x.cols);
    return QuantizeRow(job.product->row(row), cols, tile.height, to);
  }
  for (size_t g = 0; g < job.rows.num_groups; ++g, to += tile.height) *to = {};
}

// Rounds the rows of all products; the jobs point to them.
std::span<const RowJob> QuantizeRows(const Context& context,
                                     std::span<const PackedProduct> products) {
  thread_local Scratch job_scratch;
  thread_local Scratch group_scratch;
  const std::span<RowJob> jobs(job_scratch.Reserve<RowJob>(products.size()), products.size());
  int64_t num_rows = 0;
  size_t size = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const PackedProduct& product = products[i];
    const RowTiles tiles(product.out.rows, kTallestTile);
    const size_t num_groups = product.parts.front().weight->num_groups();
    jobs[i] = {&product, {nullptr, num_groups, tiles}, num_rows};
    num_rows += tiles.height();
    size += static_cast<size_t>(tiles.height()) * num_groups;
  }
  auto* groups = group_scratch.Reserve<QuantizedGroup>(size);
  for (RowJob& job : jobs) {
    job.rows.groups = groups;
    groups += static_cast<size_t>(job.rows.tiles.height()) * job.rows.num_groups;
  }
  const size_t row_groups = std::max<size_t>(1, jobs.front().rows.num_groups);
  const auto rows_of_task = static_cast<int64_t>(std::max<size_t>(1, kGroupsOfTask / row_groups));
  context.workers.Run((num_rows + rows_of_task - 1) / rows_of_task, [&](int64_t task, int) {
    const int64_t end = std::min((task + 1) * rows_of_task, num_rows);
    for (int64_t row = task * rows_of_task; row < end; ++row) {
      const RowJob& job = JobOf(std::span<const RowJob>(jobs), row, &RowJob::first_row);
      QuantizeTileRow(job, row - job.first_row);
    }
  });
  return jobs;
}

// How many tiles share L2 with a panel.
int64_t TilesOfTask(const QuantizedTiles& rows) {
  const size_t tile_bytes =
      rows.num_groups * static_cast<size_t>(kTallestTile) * sizeof(QuantizedGroup);
  return static_cast<int64_t>(std::max<size_t>(1, kRowGroupBytes / tile_bytes));
}

int64_t TileTasks(const PartJob& job) {
  return (job.job->rows.tiles.count() + job.tiles - 1) / job.tiles;
}

void RunTask(Way way, const PartJob& job, int64_t task, bool accumulate) {
  const QuantizedTiles& rows = job.job->rows;
  const BlockRows& weight = *job.part->weight;
  const Output output{job.job->product->out.Columns(job.part->first, weight.rows()), accumulate};
  const int64_t panel = task % job.panel_tasks * job.panels;
  const int64_t tile = task / job.panel_tasks * job.tiles;
  MultiplyPart(way, rows, weight, output,
               {panel, std::min(panel + job.panels, weight.num_panels()), tile,
                std::min(tile + job.tiles, rows.tiles.count())});
}

void PackedMatMulOnTarget(const Context& context, std::span<const PackedProduct> products,
                          bool accumulate) {
  if (products.empty()) return;
  thread_local Scratch scratch;
  size_t num_parts = 0;
  for (const PackedProduct& product : products) num_parts += product.parts.size();
  const std::span<PartJob> jobs(scratch.Reserve<PartJob>(num_parts), num_parts);
  size_t next = 0;
  int64_t work = 0;  // panels, once for each task's tiles
  for (const RowJob& rows : QuantizeRows(context, products)) {
    for (const PackedPart& part : rows.product->parts) {
      PartJob& job = jobs[next++];
      job = {&rows, &part, TilesOfTask(rows.rows), 0, 0, 0};
      work += TileTasks(job) * part.weight->num_panels();
    }
  }
  // About eight tasks per thread even out the threads' speeds.
  const int64_t panels = std::max<int64_t>(1, work / (8 * context.workers.num_threads()));
  int64_t num_tasks = 0;
  for (PartJob& job : jobs) {
    const int64_t num_panels = job.part->weight->num_panels();
    job.panels = panels;
    job.panel_tasks = (num_panels + panels - 1) / panels;
    job.first_task = num_tasks;
    num_tasks += TileTasks(job) * job.panel_tasks;
  }
  const Way way = WayOfThisProcessor(context);
  context.workers.Run(num_tasks, [&](int64_t task, int) {
    const PartJob& job = JobOf(std::span<const PartJob>(jobs), task, &PartJob::first_task);
    RunTask(way, job, task - job.first_task, accumulate);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {
namespace {
HWY_EXPORT(PackedMatMulOnTarget);
}  // namespace

void PackedMatMul(const Context& context, std::span<const PackedProduct> products,
                  bool accumulate) {
  HWY_DYNAMIC_DISPATCH(PackedMatMulOnTarget)(context, products, accumulate);
}

}  // namespace eta::cpu
#endif  // HWY_ONCE
