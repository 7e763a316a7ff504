// Device memory for the cells of one pass at a time (kernels/calibration_cells.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "kernels/backend.h"
#include "kernels/calibration_cells.h"

namespace eta {

class PassCells {
 public:
  // [L, HQ, CalibrationCells(bins).size()] uint64.
  static int64_t Count(const ModelConfig& config, const ScoreBins& bins);

  // `backend` must outlive it.
  PassCells(Backend& backend, const ModelConfig& config);

  // Gives zeroed cells to the pass with this handle. REQUIRES: free(). RESOURCE_EXHAUSTED where
  // the device has no room.
  absl::Status Give(uint64_t handle, const ScoreBins& bins);
  bool free() const { return owner_ == 0; }
  bool IsOwner(uint64_t handle) const { return owner_ == handle; }

  uint64_t* data() const { return buffer_->as<uint64_t>(); }
  const ScoreBins& bins() const { return bins_; }

  // Their contents after a step. Errors of Backend::Finish.
  absl::StatusOr<std::vector<uint64_t>> Read() const;
  // The pass has no more use for them.
  void Reclaim(uint64_t handle);
  // Gives the memory back to the device. REQUIRES: free().
  void Release() { buffer_.reset(); }

 private:
  Backend& backend_;
  const ModelConfig& config_;
  std::unique_ptr<Buffer> buffer_;
  ScoreBins bins_;
  uint64_t owner_ = 0;  // 0: nobody
};

}  // namespace eta
