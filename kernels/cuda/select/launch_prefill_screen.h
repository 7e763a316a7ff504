// The launches of SelectPrefillBlocks' screening, on tensor cores with one source per kind of
// index, and plain; and their arguments.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/prefill/admitted_tiles.h"
#include "kernels/cuda/select/block_mass.cuh"

namespace eta::cuda {

inline constexpr int kPrefillScreenWarps = 8;
inline constexpr int kWideScreenWarps = 4;  // prefill_screen_wgmma.cuh

struct PrefillScreenArgs {
  StepView step;
  const float* q;
  int64_t q_stride;
  float* thresholds;
  int64_t thresholds_stride;
  const float* sinks;  // [HQ] or null
  const std::byte* records;
  const std::byte* tiles;
  const float* centre;  // of kind outlier: [HKV, d] or null
  uint64_t* admitted;   // [R, HQ, words]
  int64_t words;
  uint8_t* prunes;           // [R, HQ]: not 0 if the query does not attend to every full block
  PartPlan* plan;            // of AdmittedTiles: cleared here
  int32_t* tokens_attended;  // [R, HQ]
  int32_t num_query_heads;
  int32_t warps;      // of a CTA
  int32_t warp_rows;  // rows of a warp
  float scale;
  KvTile tile;
  DType dtype;  // of the cache
  MassRule rule;

  ETA_HOST_DEVICE int32_t group() const { return num_query_heads / tile.num_kv_heads; }
  ETA_HOST_DEVICE int32_t cta_rows() const { return warps * warp_rows; }
  // How many CTAs screen the rows of a sequence for one KV head.
  ETA_HOST_DEVICE int32_t Pieces(const StepSequence& sequence) const {
    return sequence.sparse != 0 ? (sequence.num_rows + cta_rows() - 1) / cta_rows() : 0;
  }
};

// How many times 8 queries a warp has.
constexpr int PrefillHeadTiles(int head_dim, int group) {
  return head_dim == 64 || group > 8 ? 2 : 1;
}

// Bytes from one block's record to the next one's in shared memory.
ETA_HOST_DEVICE uint32_t RecordStride(const KvTile& tile) {
  const auto vectors = static_cast<uint32_t>(tile.Mu(1));
  const auto scalars = static_cast<uint32_t>(tile.form == RecordForm::kNarrow ? 16 : 4);
  return tile.form == RecordForm::kHalf ? vectors + 64 : (vectors + scalars + 31) / 64 * 64 + 32;
}

// Whether wgmma screens: float16 records of kind moment at d = 64 on sm_90a.
bool UsesWideScreen(const Context& context, const KvTile& tile);  // prefill_screen_moment.cu
void LaunchMomentPrefillScreen(Context& context, const PrefillScreenArgs& args, uint32_t pieces,
                               bool wide);  // prefill_screen_moment.cu
// `relative`: there may be rows with relative thresholds.
void LaunchOutlierPrefillScreen(Context& context, const PrefillScreenArgs& args, uint32_t pieces,
                                bool relative);  // prefill_screen_outlier.cu
// Any geometry and type, without tensor cores; exact and slow.
void PlainScreenPrefill(Context& context,
                        const PrefillScreenArgs& args);  // plain_prefill_screen.cu

}  // namespace eta::cuda
