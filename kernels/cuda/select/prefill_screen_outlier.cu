// Selection of sparse prefill with records of kind outlier.

#include "kernels/cuda/select/launch_prefill_screen.h"
#include "kernels/cuda/select/prefill_screen.cuh"

namespace eta::cuda {

void LaunchOutlierPrefillScreen(Context& context, const PrefillScreenArgs& args, uint32_t pieces,
                                bool relative) {
  if (relative) {
    LaunchPrefillScreen<OutlierIndex, /*kRelative=*/true>(context, args, pieces);
  } else {
    LaunchPrefillScreen<OutlierIndex, /*kRelative=*/false>(context, args, pieces);
  }
}

}  // namespace eta::cuda
