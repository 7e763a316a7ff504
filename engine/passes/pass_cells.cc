#include "engine/passes/pass_cells.h"

#include <algorithm>

#include "engine/base/status_macros.h"
#include "kernels/system/failpoint.h"

namespace eta {

int64_t PassCells::Count(const ModelConfig& config, const ScoreBins& bins) {
  return int64_t{config.num_layers} * config.num_query_heads * CalibrationCells(bins).size();
}

PassCells::PassCells(Backend& backend, const ModelConfig& config)
    : backend_(backend), config_(config) {}

absl::Status PassCells::Give(uint64_t handle, const ScoreBins& bins) {
  const size_t bytes = static_cast<size_t>(Count(config_, bins)) * sizeof(uint64_t);
  if (buffer_ == nullptr || buffer_->size() != bytes) {
    buffer_.reset();
    if (ETA_FAILPOINT(kEnginePassCells)) return absl::ResourceExhaustedError("no memory");
    ASSIGN_OR_RETURN(buffer_, backend_.Allocate(bytes));
  }
  constexpr size_t kPiece = size_t{1} << 20;
  const std::vector<std::byte> zeros(std::min(bytes, kPiece));
  for (size_t begin = 0; begin < bytes; begin += kPiece) {
    backend_.Upload(buffer_->data() + begin, zeros.data(), std::min(kPiece, bytes - begin));
  }
  bins_ = bins;
  owner_ = handle;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> PassCells::Read() const {
  std::vector<uint64_t> cells(static_cast<size_t>(Count(config_, bins_)));
  backend_.Download(cells.data(), buffer_->data(), cells.size() * sizeof(uint64_t));
  RETURN_IF_ERROR(backend_.Finish());
  return cells;
}

void PassCells::Reclaim(uint64_t handle) {
  if (owner_ == handle) owner_ = 0;
}

}  // namespace eta
