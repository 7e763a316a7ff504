// Selection of sparse prefill with records of kind moment.

#include <cstdint>

#include "kernels/cuda/select/launch_prefill_screen.h"
#include "kernels/cuda/select/prefill_screen.cuh"
#include "kernels/cuda/select/prefill_screen_wgmma.cuh"

namespace eta::cuda {

bool UsesWideScreen([[maybe_unused]] const Context& context, [[maybe_unused]] const KvTile& tile) {
#ifdef ETA_CUDA_SM90A
  return tile.form == RecordForm::kHalf && tile.head_dim == 64 &&
         context.device.compute_capability() == 90;
#else
  return false;
#endif
}

void LaunchMomentPrefillScreen(Context& context, const PrefillScreenArgs& args, uint32_t pieces,
                               bool wide) {
  if (wide) {
    Launch(context.device, "screen of prefill",
           {.grid = dim3(pieces * static_cast<uint32_t>(args.tile.num_kv_heads)),
            .block = dim3(WideScreen::kThreads),
            .shared_bytes = WideScreen::kSharedBytes},
           WidePrefillScreen, args);
  } else if (args.tile.form == RecordForm::kNarrow) {
    LaunchPrefillScreen<int8_t, /*kRelative=*/false>(context, args, pieces);
  } else {
    LaunchPrefillScreen<Half, /*kRelative=*/false>(context, args, pieces);
  }
}

}  // namespace eta::cuda
