// PrefillAttention with wgmma (sm_90a) at d = 64. A row of a tile is then 128 bytes, which is the
// width of the hardware's swizzle, so keys and values are multiplied where the bulk copy put them.
// Two warpgroups of 64 queries multiply and weigh, and take turns in copying. Two CTAs share a
// multiprocessor: while one warpgroup waits for its products, another is busy with gate and
// exponentials.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/prefill/gated_softmax.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"
#include "kernels/cuda/prefill/wgmma_part.cuh"

namespace eta::cuda {

// Full prefill, or with kWindowPieces that of a layer with a window.
template <typename Element, int kPieces>
__global__ void __launch_bounds__(kWgmmaThreads, 2)
    PrefillWgmma(const __grid_constant__ PrefillParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const WgmmaRing<Element> ring;
  WaitForPrevious();
  const PrefillWork work = WorkOfBlock(params);
  const PrefillTile tile = FindTile(params, work.tile, work.kv_head);
  if (tile.row_begin < 0 || work.part >= tile.parts) return;
  using Part = WgmmaPart<Element, kPieces>;
  Part part(params, ring, work, tile);
  const typename Part::Keys keys = AllKeys<kPieces>(params.window);
  typename Part::Place at;
  part.Receive(0, at);
  wgmma::Fence();
  part.MultiplyKeys(0);
  wgmma::Wait<0>();
  wgmma::Pin(part.scores);
  part.WeighTile(part.Bound(0, 0, keys), keys);
  for (int32_t i = 1; i < part.count; ++i) {
    const int32_t before = at.stage;
    at.Advance();
    part.CopyNext(i, at);
    part.Receive(i, at);
    wgmma::Pin(part.sums);
    wgmma::Fence();
    part.MultiplyKeys(at.stage);
    part.MultiplyValues(before);
    wgmma::Wait<1>();
    wgmma::Pin(part.scores);
    const Weighing weighing = part.Bound(i, at.stage, keys);
    part.FinishValues();
    part.Release(before);
    part.WeighTile(weighing, keys);
    Apply(part.rescale, part.sums);
  }
  part.Finish(at.stage);
#else
  __trap();
#endif
}

// Sparse prefill. A warpgroup leaves out tiles to which none of its queries attends. It may not
// hold a stage while it does: the others' copies would wait for it.
template <typename Element, int kPieces>
__global__ void __launch_bounds__(kWgmmaThreads, 2)
    SparsePrefillWgmma(const __grid_constant__ PrefillParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Part = WgmmaPart<Element, kPieces>;
  const WgmmaRing<Element> ring;
  WaitForPrevious();
  const PrefillWork work = WorkOfBlock(params);
  const PrefillTile tile = FindTile(params, work.tile, work.kv_head);
  if (tile.row_begin < 0 || work.part >= tile.parts) return;
  Part part(params, ring, work, tile);
  typename Part::Place at;
  int32_t before = -1;  // the stage whose values are still to be multiplied; -1: none
  for (int32_t i = 0; i < part.count; ++i) {
    if (i > 0) {
      at.Advance();
      part.CopyNext(i, at);
    }
    part.Receive(i, at);
    if (!AttendsAny<kPieces>(ring.stages + Part::EntryAt(at.stage), ring.warp / 4)) {
      if (before >= 0) {
        wgmma::Pin(part.sums);
        wgmma::Fence();
        part.MultiplyValues(before);
        part.FinishValues();
        part.Release(before);
        before = -1;
      }
      part.Release(at.stage);
      continue;
    }
    wgmma::Pin(part.sums);
    wgmma::Fence();
    part.MultiplyKeys(at.stage);
    if (before >= 0) {
      part.MultiplyValues(before);
    } else {
      wgmma::Commit();
    }
    wgmma::Wait<1>();
    wgmma::Pin(part.scores);
    const typename Part::Keys keys = part.KeysOfTile(i, at.stage);
    const Weighing weighing = part.Bound(i, at.stage, keys);
    part.FinishValues();
    if (before >= 0) part.Release(before);
    part.WeighTile(weighing, keys);
    Apply(part.rescale, part.sums);
    before = at.stage;
  }
  part.Finish(before);
#else
  __trap();
#endif
}

}  // namespace eta::cuda
