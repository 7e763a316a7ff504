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

}  // namespace

void LaunchWidePrefill(Context& context, const PrefillParams& params, uint32_t blocks) {
  WithElementAndPieces(params, [&](auto element, auto pieces) {
    LaunchForDevice<decltype(element), pieces()>(context, params, blocks);
  });
}

}  // namespace eta::cuda
