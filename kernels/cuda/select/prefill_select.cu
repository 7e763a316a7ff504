// SelectPrefillBlocks decides which full blocks rows of sparse prefill attend to, as SelectBlocks
// does for decode rows, and leaves a mask per (row, query head) (eta-semantics.md, "Sparse
// prefill"). Screening (prefill_screen.cuh, or plain) writes the masks. A second kernel counts what
// tiles of rows read, and lists what attention tiles attend to (admitted_tiles.h).

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/prefill/admitted_tiles.h"
#include "kernels/cuda/select/launch_prefill_screen.h"
#include "kernels/cuda/select/prefill_lists.cuh"

namespace eta::cuda {

size_t AdmittedTilesBytes(const KvGeometry& geometry, int64_t num_query_heads, int64_t rows,
                          int64_t context) {
  const auto group = static_cast<int32_t>(num_query_heads / geometry.num_kv_heads);
  // Some more tiles than full ones: the rows of several prompts.
  const int64_t tiles =
      group > kTileQueries ? 0 : int64_t{2} * AttentionTiles(static_cast<int32_t>(rows), group);
  const int64_t lists = tiles * geometry.num_kv_heads;
  const int64_t entries = lists * (context / kTileKeys + 1);
  const int64_t parts = lists + entries / kMinPartTiles;
  return static_cast<size_t>(entries * AdmittedTileBytes(TilePieces(geometry.block_size)) +
                             parts * int64_t{sizeof(ListPart)} +
                             lists * int64_t{sizeof(PlannedList)} + rows * num_query_heads);
}

AdmittedTiles AdmittedTilesOf(Context& context, const KvGeometry& geometry,
                              int32_t num_query_heads) {
  const int32_t group = num_query_heads / geometry.num_kv_heads;
  int64_t tiles = 0;
  int64_t longest = 0;  // the most key tiles of all lists of a KV head
  int32_t keys = 0;
  for (const StepSequence& sequence : context.sequences) {
    if (sequence.sparse == 0) continue;
    const int64_t of_sequence = AttentionTiles(sequence.num_rows, group);
    const int32_t end = sequence.position + sequence.num_rows;
    tiles += of_sequence;
    longest += of_sequence * ((end + kTileKeys - 1) / kTileKeys);
    keys = std::max(keys, end);
  }
  AdmittedTiles lists = {.capacity = (keys + kTileKeys - 1) / kTileKeys,
                         .num_kv_heads = geometry.num_kv_heads,
                         .slots = PrefillCtas(geometry.head_dim) * context.device.num_sms()};
  const bool listed = TensorCoresTake(context.device, geometry, num_query_heads);
  const int64_t of_lists = listed ? tiles * geometry.num_kv_heads : 0;
  if (lists.capacity >= 2 * kMinPartTiles) {
    lists.max_results = static_cast<int32_t>(std::min<int64_t>(
        longest * geometry.num_kv_heads / kMinPartTiles, int64_t{kSharesOfSlot} * lists.slots));
  }
  lists.max_parts = static_cast<int32_t>(of_lists) + lists.max_results;
  const auto entry_bytes = static_cast<size_t>(of_lists * lists.capacity) *
                           static_cast<size_t>(AdmittedTileBytes(TilePieces(geometry.block_size)));
  const size_t plan_bytes = static_cast<size_t>(of_lists) * sizeof(PlannedList);
  const size_t part_bytes = static_cast<size_t>(lists.max_parts) * sizeof(ListPart) +
                            static_cast<size_t>(lists.max_results / 2) * sizeof(int32_t);
  const auto flag_bytes = static_cast<size_t>(int64_t{context.step.num_rows} * num_query_heads);
  std::byte* memory =
      context.scratch.Get(Scratch::Use::kAdmittedTiles,
                          entry_bytes + plan_bytes + part_bytes + sizeof(PartPlan) + flag_bytes);
  if (memory == nullptr) return {};
  lists.entries = memory;
  lists.lists = reinterpret_cast<PlannedList*>(memory + entry_bytes);
  lists.parts = reinterpret_cast<ListPart*>(memory + entry_bytes + plan_bytes);
  lists.cuts = reinterpret_cast<int32_t*>(lists.parts + lists.max_parts);
  lists.plan = reinterpret_cast<PartPlan*>(lists.cuts + lists.max_results / 2);
  lists.prunes = reinterpret_cast<uint8_t*>(lists.plan + 1);
  return lists;
}

void SelectPrefillBlocks(Context& context, const SelectPrefillParams& params,
                         const DeviceCounts& counts, bool relative) {
  const KvGeometry& geometry = params.geometry;
  const KvTile tile(geometry);
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  const AdmittedTiles lists = AdmittedTilesOf(context, geometry, params.num_query_heads);
  if (lists.entries == nullptr) return;
  const bool fast = TensorCoresTake(context.device, geometry, params.num_query_heads);
  PrefillScreenArgs screen = {.step = context.step,
                              .q = params.q.data,
                              .q_stride = params.q.stride,
                              .thresholds = params.thresholds.data,
                              .thresholds_stride = params.thresholds.stride,
                              .sinks = params.sinks,
                              .records = params.kv.records,
                              .tiles = params.kv.tiles,
                              .centre = params.kv.index_centre,
                              .admitted = params.selection.admitted,
                              .words = params.selection.words,
                              .prunes = lists.prunes,
                              .plan = lists.plan,
                              .tokens_attended = counts.tokens_attended,
                              .num_query_heads = params.num_query_heads,
                              .warps = kPrefillScreenWarps,
                              .warp_rows = 0,
                              .scale = params.softmax_scale,
                              .tile = tile,
                              .dtype = geometry.dtype,
                              .rule = MakeMassRule(geometry.block_size)};
  ListArgs list = {.step = context.step,
                   .admitted = params.selection.admitted,
                   .words = params.selection.words,
                   .lists = lists,
                   .tokens_read = counts.tokens_read,
                   .num_query_heads = params.num_query_heads,
                   .num_kv_heads = geometry.num_kv_heads,
                   .block_size = geometry.block_size,
                   .list_tiles = 0};
  uint32_t read_tiles = 0;
  uint32_t pieces = 0;
  const bool wide = fast && UsesWideScreen(context, tile);
  if (wide) screen.warps = kWideScreenWarps;
  if (fast) screen.warp_rows = 8 * PrefillHeadTiles(geometry.head_dim, group) / group;
  for (const StepSequence& sequence : context.sequences) {
    if (sequence.sparse == 0) continue;
    read_tiles += static_cast<uint32_t>(ReadTiles(sequence));
    if (!fast) continue;
    list.list_tiles += AttentionTiles(sequence.num_rows, group);
    pieces += static_cast<uint32_t>(screen.Pieces(sequence));
  }
  if (!fast) {
    PlainScreenPrefill(context, screen);
  } else if (tile.form == RecordForm::kOutlier) {
    LaunchOutlierPrefillScreen(context, screen, pieces, relative);
  } else {
    LaunchMomentPrefillScreen(context, screen, pieces, wide);
  }
  const uint32_t tiles = static_cast<uint32_t>(list.list_tiles) + read_tiles;
  Launch(context.device, "lists of prefill",
         {.grid = dim3(tiles * static_cast<uint32_t>(geometry.num_kv_heads)),
          .block = dim3(kListThreads)},
         ListKernel, list);
}

}  // namespace eta::cuda
