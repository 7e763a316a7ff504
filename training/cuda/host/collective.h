// Sums over the devices of one job, by NCCL. The library is loaded when several devices are asked
// for; a build without its header refuses them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/host/device.h"

namespace eta::training::cuda {

// One device's end of a job's communicator.
class Collective {
 public:
  // One for each device, in order. UNAVAILABLE, with the reason, if there is no NCCL.
  static absl::StatusOr<std::vector<std::unique_ptr<Collective>>> Open(
      const std::vector<eta::cuda::Device*>& devices);
  virtual ~Collective() = default;

  // Sums `count` values over the devices, in place and on the device's stream. Each device's thread
  // calls it.
  virtual void AllReduce(float* values, int64_t count) = 0;
};

}  // namespace eta::training::cuda
