#include "kernels/cuda/device/launch.cuh"
#include "training/cuda/attention/attention_backward_query.cuh"
#include "training/cuda/attention/attention_launch.h"

namespace eta::training::cuda {

void LaunchQueryGrad(eta::cuda::Device& device, const KernelChoice& choice,
                     const BackwardKernelParams& params) {
  const WorkOrder& order = params.query_order;
  WithChoice(choice, [&](auto dim, auto gate, auto blocks, auto selected) {
    eta::cuda::Launch(device, "gradient of queries",
                      {.grid = static_cast<uint32_t>(order.heads * order.tiles),
                       .block = RowShape<dim()>::kThreads,
                       .shared_bytes = QueryGradShape<dim()>::kSharedBytes},
                      AttentionQueryGradKernel<dim(), gate(), blocks(), selected()>, params);
  });
}

}  // namespace eta::training::cuda
