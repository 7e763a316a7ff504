#include "kernels/cuda/device/launch.cuh"
#include "training/cuda/attention/attention_backward_key.cuh"
#include "training/cuda/attention/attention_launch.h"

namespace eta::training::cuda {

void LaunchKeyGrad(eta::cuda::Device& device, const KernelChoice& choice,
                   const BackwardKernelParams& params) {
  const WorkOrder& order = params.key_order;
  WithChoice(choice, [&](auto dim, auto gate, auto blocks, auto selected) {
    eta::cuda::Launch(device, "gradient of keys",
                      {.grid = static_cast<uint32_t>(order.heads * order.tiles),
                       .block = kKeyThreads,
                       .shared_bytes = KeyGradShape<dim(), blocks()>::kSharedBytes},
                      AttentionKeyGradKernel<dim(), gate(), blocks(), selected()>, params);
  });
}

}  // namespace eta::training::cuda
