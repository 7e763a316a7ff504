// The divergence of ways of attending from the first one (solvers/divergence.h), at chosen rows of
// the same text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "calibration/solvers/divergence.h"
#include "calibration/solvers/even_sample.h"

namespace eta {

// Logits of the first way of attending that a comparison may hold in memory.
inline constexpr int64_t kMaxKeptLogitBytes = int64_t{4} << 30;

// InvalidArgument, naming `kl`, if that share of `rows` rows does not fit.
absl::Status CheckDivergenceShare(double share, int64_t rows, int32_t vocab_size);

class DivergenceMeter {
 public:
  // Of `share` [0, 1] of the scored rows, evenly spread. `first` must outlive the meter. That of
  // the first way of attending fills it, and measures nothing; others follow, row by row.
  DivergenceMeter(double share, KeptLogits& first, bool is_first);

  // Chooses among the next `rows` rows. Both spans hold until the next call.
  void Choose(size_t rows);
  std::span<const int32_t> rows() const { return chosen_; }
  std::span<float> logits() { return logits_; }  // [rows(), V]: to be written
  // After the logits were written.
  void Absorb();
  // The mean in nats; nothing, if no row was measured.
  std::optional<double> Mean() const;

 private:
  EvenSample sample_;
  const size_t vocab_size_;
  KeptDivergence divergence_;
  std::vector<int32_t> chosen_;
  std::vector<float> logits_;
};

}  // namespace eta
