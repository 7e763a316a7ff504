#include "calibration/evaluation/perplexity/divergence_meter.h"

#include <numeric>

#include "absl/strings/str_format.h"
#include "engine/base/error.h"

namespace eta {

absl::Status CheckDivergenceShare(double share, int64_t rows, int32_t vocab_size) {
  const double bytes =
      share * static_cast<double>(rows) * static_cast<double>(vocab_size) * sizeof(float);
  if (bytes <= static_cast<double>(kMaxKeptLogitBytes)) return absl::OkStatus();
  return InvalidField("kl", absl::StrFormat("the logits of so many rows are %.1f GiB, more than %d",
                                            bytes / (1 << 30), kMaxKeptLogitBytes >> 30));
}

DivergenceMeter::DivergenceMeter(double share, KeptLogits& first, bool is_first)
    : sample_(share),
      vocab_size_(static_cast<size_t>(first.vocab_size)),
      divergence_(first, is_first) {}

void DivergenceMeter::Choose(size_t rows) {
  chosen_.clear();
  for (size_t row = 0; row < rows; ++row) {
    if (sample_.TakesNext()) chosen_.push_back(static_cast<int32_t>(row));
  }
  logits_.resize(chosen_.size() * vocab_size_);
}

void DivergenceMeter::Absorb() {
  divergence_.Add(logits_);
}

std::optional<double> DivergenceMeter::Mean() const {
  const std::vector<float>& rows = divergence_.rows();
  if (rows.empty()) return std::nullopt;
  return std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(rows.size());
}

}  // namespace eta
