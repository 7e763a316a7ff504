// SelectBlocks decides which full blocks each decode row reads. A query head admits a block if the
// bound on its scores, from q [R, HQ * d] and the block's record, reaches tau_eff; with relative
// thresholds if the block's estimated mass does. Some blocks are always read, and an empty head
// rescues its best block. The result is one ascending list of blocks per (row, KV head), with the
// heads of the group that attend to each (eta-semantics.md, "Selection", steps 1 to 5).
//
// Bytes of records bind, and issuing their copies. Screening (screen_kernel.cuh and what it
// includes) writes a mask of heads per block, or masses. Compaction (screen_pack.cuh,
// row_threshold.cuh) pins, rescues and packs the masks into lists.

#include <algorithm>

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/select/launch_screen.h"
#include "kernels/cuda/select/screen.cuh"
#include "kernels/cuda/select/screen_items.cuh"
#include "kernels/cuda/select/screen_pack.cuh"

namespace eta::cuda {
namespace {

// The number of items in shared memory that each CTA has room for.
int32_t ScreenStages(const Device& device, const KvTile& tile, int32_t head_tiles) {
  constexpr size_t kReserved = 1024;  // the system's part of each CTA
  const size_t per_cta = (device.shared_memory_per_block() + kReserved) /
                             static_cast<size_t>(ScreenCtas(tile.head_dim, head_tiles)) -
                         kReserved - sizeof(ScreenRing) - sizeof(ScreenRow) - 128;
  return static_cast<int32_t>(
      std::min<size_t>(per_cta / ItemShape(tile).bytes(), kMaxScreenStages));
}

// The scratch memory for masses; null pointers if the device has none.
MassScratch MassesOf(Context& context, const SelectBlocksParams& params) {
  const KvGeometry& geometry = params.geometry;
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  const int64_t rows = std::min<int64_t>(context.step.num_rows, params.selection.rows);
  MassScratch scratch = {.masses = nullptr,
                         .sums = nullptr,
                         .capacity = params.selection.capacity,
                         .stride = (group + 1) / 2 * 2,
                         .pieces = MassPieces(params.selection.capacity)};
  std::byte* memory = context.scratch.Get(
      Scratch::Use::kMasses, MassBytes(rows, geometry.num_kv_heads, group, scratch.capacity));
  if (memory == nullptr) return scratch;
  scratch.masses = reinterpret_cast<float*>(memory);
  scratch.sums = scratch.masses + rows * geometry.num_kv_heads * scratch.capacity * scratch.stride;
  return scratch;
}

void Screen(Context& context, const SelectBlocksParams& params, unsigned long long* best,
            const MassScratch& masses) {
  const KvGeometry& geometry = params.geometry;
  const KvTile tile(geometry);
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  const int32_t num_stages = ScreenStages(context.device, tile, group <= 8 ? 1 : 2);
  const ScreenArgs args = {context.step,
                           params.q.data,
                           params.q.stride,
                           params.thresholds.data,
                           params.thresholds.stride,
                           params.kv.records,
                           params.kv.index_centre,
                           params.selection.heads,
                           best,
                           params.selection.capacity,
                           params.num_query_heads,
                           num_stages,
                           params.softmax_scale,
                           tile,
                           masses,
                           MakeMassRule(geometry.block_size)};
  // Devices with too little shared memory for a ring use the plain form.
  if (!TensorCoresTake(context.device, geometry, params.num_query_heads) || num_stages < 2) {
    PlainScreen(context, args);
  } else if (tile.form == RecordForm::kOutlier) {
    LaunchOutlierScreen(context, args, masses.masses != nullptr);
  } else {
    LaunchMomentScreen(context, args);
  }
}

// [rows, HQ], cleared; null if the device has no memory.
unsigned long long* BestBounds(Context& context, int32_t num_query_heads) {
  const auto cells = static_cast<size_t>(context.step.num_rows) * num_query_heads;
  return reinterpret_cast<unsigned long long*>(
      context.scratch.Get(Scratch::Use::kRescue, cells * sizeof(uint64_t)));
}

// What packing takes of either op; masks and masses are left to it.
template <typename Params>
PackArgs PackingOf(const Context& context, const Params& params, const DeviceCounts& counts,
                   unsigned long long* best, uint32_t* pool_blocks) {
  return {.step = context.step,
          .selection = params.selection,
          .masks = nullptr,
          .pool_blocks = pool_blocks,
          .best = best,
          .tokens_attended = counts.tokens_attended,
          .tokens_read = counts.tokens_read,
          .values_read = counts.values_read,
          .num_query_heads = params.num_query_heads,
          .num_kv_heads = params.geometry.num_kv_heads,
          .block_size = params.geometry.block_size,
          .mass = {.tile = KvTile(params.geometry)}};
}

LaunchShape PackShape(const Context& context, const KvGeometry& geometry) {
  const int64_t lists = int64_t{context.step.num_rows} * geometry.num_kv_heads;
  return {.grid = dim3(static_cast<unsigned>(lists)), .block = dim3(kPackThreads)};
}

}  // namespace

void SelectBlocks(Context& context, const SelectBlocksParams& params, const DeviceCounts& counts,
                  bool relative) {
  const KvGeometry& geometry = params.geometry;
  unsigned long long* best = BestBounds(context, params.num_query_heads);
  if (best == nullptr) return;
  MassScratch masses = {};
  if (relative) {
    masses = MassesOf(context, params);
    if (masses.masses == nullptr) return;
  }
  Screen(context, params, best, masses);
  uint32_t* pool_blocks = PoolBlocks(context, geometry.num_kv_heads, params.selection);
  if (pool_blocks == nullptr) return;
  PackArgs pack = PackingOf(context, params, counts, best, pool_blocks);
  pack.masks = params.selection.heads;
  pack.mass = {params.q.data,   params.q.stride,  params.thresholds.data, params.thresholds.stride,
               params.kv.tiles, KvTile(geometry), params.softmax_scale,   masses,
               params.sinks};
  LaunchShape shape = PackShape(context, geometry);
  if (!relative) {
    Launch(context.device, "pack blocks", shape, PackKernel<float, false>, pack);
    return;
  }
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  const int32_t padded_group = (group + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
  shape.shared_bytes = static_cast<size_t>(padded_group * geometry.head_dim) * sizeof(float);
  WithCacheType(geometry.dtype, [&](auto element) {
    Launch(context.device, "pack blocks", shape, PackKernel<decltype(element), true>, pack);
  });
}

void ListBlocks(Context& context, const ListBlocksParams& params, const uint32_t* heads,
                const DeviceCounts& counts) {
  unsigned long long* best = BestBounds(context, params.num_query_heads);
  uint32_t* pool_blocks = PoolBlocks(context, params.geometry.num_kv_heads, params.selection);
  if (best == nullptr || pool_blocks == nullptr) return;
  PackArgs pack = PackingOf(context, params, counts, best, pool_blocks);
  pack.masks = heads;
  Launch(context.device, "pack chosen blocks", PackShape(context, params.geometry),
         PackKernel<float, false, true>, pack);
}

}  // namespace eta::cuda
