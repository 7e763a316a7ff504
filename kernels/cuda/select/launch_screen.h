// The launches of screening on tensor cores, one source per kind of index.
#pragma once

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/host/ops.h"

namespace eta::cuda {

struct ScreenArgs;

// CTAs that the registers and shared memory of a multiprocessor hold.
constexpr int ScreenCtas(int head_dim, int head_tiles) {
  return (head_dim > 64 && head_tiles == 2) || head_dim == kWideHeadDim ? 1 : 2;
}

void LaunchMomentScreen(Context& context, const ScreenArgs& args);  // screen_moment.cu
// `relative`: there may be rows with relative thresholds.
void LaunchOutlierScreen(Context& context, const ScreenArgs& args,
                         bool relative);  // screen_outlier.cu

}  // namespace eta::cuda
