// Screening with records of kind moment.

#include <cstdint>

#include "kernels/cuda/select/launch_screen.h"
#include "kernels/cuda/select/screen_kernel.cuh"

namespace eta::cuda {

void LaunchMomentScreen(Context& context, const ScreenArgs& args) {
  if (args.tile.form == RecordForm::kNarrow) {
    LaunchScreen<int8_t, /*kRelative=*/false>(context, args);
  } else {
    LaunchScreen<Half, /*kRelative=*/false>(context, args);
  }
}

}  // namespace eta::cuda
