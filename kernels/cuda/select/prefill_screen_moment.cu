// Selection of sparse prefill with records of kind moment.

#include <cstdint>

#include "kernels/cuda/select/launch_prefill_screen.h"
#include "kernels/cuda/select/prefill_screen.cuh"

namespace eta::cuda {

void LaunchMomentPrefillScreen(Context& context, const PrefillScreenArgs& args, uint32_t pieces) {
  if (args.tile.form == RecordForm::kNarrow) {
    LaunchPrefillScreen<int8_t, /*kRelative=*/false>(context, args, pieces);
  } else {
    LaunchPrefillScreen<Half, /*kRelative=*/false>(context, args, pieces);
  }
}

}  // namespace eta::cuda
