// Prefill attention at d = 256: the form of the device, the type of the cache, and which keys
// queries attend to.

#include <cstdint>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/prefill/prefill_wide.cuh"
#include "kernels/cuda/prefill/prefill_wide.h"

namespace eta::cuda {
namespace {

template <typename Element, int kPieces>
void LaunchForDevice(Context& context, const PrefillParams& params, uint32_t blocks) {
  const LaunchShape shape = {
      .grid = blocks, .block = kMmaThreads, .shared_bytes = WideShape::kSharedBytes};
#ifdef ETA_CUDA_SM90A
  if (context.device.compute_capability() == 90) {
    return Launch(context.device, "prefill attention", shape, PrefillWideWgmma<Element, kPieces>,
                  params);
  }
#endif
  Launch(context.device, "prefill attention", shape, PrefillWide<Element, kPieces>, params);
}

template <int kPieces>
void LaunchForType(Context& context, const PrefillParams& params, uint32_t blocks) {
  if (params.geometry.dtype == DType::kFloat16) {
    LaunchForDevice<Half, kPieces>(context, params, blocks);
  } else {
    LaunchForDevice<BFloat16, kPieces>(context, params, blocks);
  }
}

}  // namespace

void LaunchWidePrefill(Context& context, const PrefillParams& params, uint32_t blocks) {
  if (params.window > 0) return LaunchForType<kWindowPieces>(context, params, blocks);
  if (params.admitted.entries == nullptr) return LaunchForType<0>(context, params, blocks);
  switch (TilePieces(params.geometry.block_size)) {
    case 1:
      return LaunchForType<1>(context, params, blocks);
    case 2:
      return LaunchForType<2>(context, params, blocks);
    default:
      return LaunchForType<4>(context, params, blocks);
  }
}

}  // namespace eta::cuda
