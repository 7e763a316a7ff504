#include "calibration/evaluation/perplexity/divergence_meter.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "calibration/evaluation/perplexity/alignment.h"
#include "engine/base/error.h"

namespace eta {

absl::Status CheckDivergenceShare(double share, int64_t rows, int32_t vocab_size) {
  const double bytes =
      share * static_cast<double>(rows) * static_cast<double>(vocab_size) * sizeof(float);
  if (bytes <= static_cast<double>(kMaxKeptLogitBytes)) return absl::OkStatus();
  return InvalidField("kl", absl::StrFormat("the logits of so many rows are %.1f GiB, more than %d",
                                            bytes / (1 << 30), kMaxKeptLogitBytes >> 30));
}

DivergenceMeter::DivergenceMeter(double share, KeptLogits& first)
    : sample_(share), first_(first), is_first_(first.rows.empty()) {}

void DivergenceMeter::Choose(size_t rows) {
  chosen_.clear();
  for (size_t row = 0; row < rows; ++row) {
    if (sample_.TakesNext()) chosen_.push_back(static_cast<int32_t>(row));
  }
  logits_.resize(chosen_.size() * static_cast<size_t>(first_.vocab_size));
}

void DivergenceMeter::Absorb() {
  if (is_first_) {
    first_.rows.insert(first_.rows.end(), logits_.begin(), logits_.end());
    return;
  }
  const auto width = static_cast<size_t>(first_.vocab_size);
  for (size_t row = 0; row < chosen_.size(); ++row, ++measured_) {
    const auto first =
        std::span(first_.rows).subspan(static_cast<size_t>(measured_) * width, width);
    sum_ += AlignLogits(first, std::span(logits_).subspan(row * width, width)).kl;
  }
}

std::optional<double> DivergenceMeter::Mean() const {
  if (measured_ == 0) return std::nullopt;
  return sum_ / static_cast<double>(measured_);
}

}  // namespace eta
