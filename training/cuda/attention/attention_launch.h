// Launches of the attention kernels, each in a file of its own: every one is compiled for two head
// dimensions and three gates, with and without block sums, and without a gate also for chosen keys.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/cuda/host/device.h"
#include "training/cuda/attention/kernel_params.h"

namespace eta::training::cuda {

struct KernelChoice {
  int32_t head_dim = 64;  // 64 or 128
  GateKind gate = GateKind::kNone;
  bool blocks = false;    // block sums or their gradients; never with kNone
  bool selected = false;  // not all keys; only with kNone
};

void LaunchForward(eta::cuda::Device& device, const KernelChoice& choice,
                   const ForwardKernelParams& params);
void LaunchQueryGrad(eta::cuda::Device& device, const KernelChoice& choice,
                     const BackwardKernelParams& params);
void LaunchKeyGrad(eta::cuda::Device& device, const KernelChoice& choice,
                   const BackwardKernelParams& params);

// Calls launch(head dimension, gate, blocks, selected), each a constant.
template <typename Launch>
void WithChoice(const KernelChoice& choice, Launch&& launch) {
  const auto with_dim = [&](auto gate, auto blocks, auto selected) {
    if (choice.head_dim == 64) {
      launch(std::integral_constant<int, 64>{}, gate, blocks, selected);
    } else {
      launch(std::integral_constant<int, 128>{}, gate, blocks, selected);
    }
  };
  const auto with_blocks = [&](auto gate) {
    if (choice.blocks) {
      with_dim(gate, std::true_type{}, std::false_type{});
    } else {
      with_dim(gate, std::false_type{}, std::false_type{});
    }
  };
  const std::integral_constant<GateKind, GateKind::kNone> none;
  switch (choice.gate) {
    case GateKind::kNone:
      if (choice.selected) return with_dim(none, std::false_type{}, std::true_type{});
      return with_dim(none, std::false_type{}, std::false_type{});
    case GateKind::kSilu:
      return with_blocks(std::integral_constant<GateKind, GateKind::kSilu>{});
    case GateKind::kAdditive:
      return with_blocks(std::integral_constant<GateKind, GateKind::kAdditive>{});
  }
}

}  // namespace eta::training::cuda
