#include "kernels/cuda/device/launch.cuh"
#include "training/cuda/attention/attention_forward.cuh"
#include "training/cuda/attention/attention_launch.h"

namespace eta::training::cuda {

void LaunchForward(eta::cuda::Device& device, const KernelChoice& choice,
                   const ForwardKernelParams& params) {
  const WorkOrder& order = params.order;
  WithChoice(choice, [&](auto dim, auto gate, auto blocks, auto selected) {
    eta::cuda::Launch(device, "attention",
                      {.grid = static_cast<uint32_t>(order.heads * order.tiles),
                       .block = RowShape<dim()>::kThreads,
                       .shared_bytes = ForwardShape<dim()>::kSharedBytes},
                      AttentionForwardKernel<dim(), gate(), blocks(), selected()>, params);
  });
}

}  // namespace eta::training::cuda
