// Screening with records of kind outlier.

#include "kernels/cuda/select/launch_screen.h"
#include "kernels/cuda/select/screen_kernel.cuh"

namespace eta::cuda {

void LaunchOutlierScreen(Context& context, const ScreenArgs& args, bool relative) {
  if (relative) {
    LaunchScreen<OutlierIndex, /*kRelative=*/true>(context, args);
  } else {
    LaunchScreen<OutlierIndex, /*kRelative=*/false>(context, args);
  }
}

}  // namespace eta::cuda
