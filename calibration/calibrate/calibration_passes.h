// The purposes of calibration's passes: to collect scores, and to measure the cost and the quality
// of decoding and whether it finds what a text holds.
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/calibrate/calibration_clock.h"
#include "calibration/calibrate/collected_cells.h"
#include "calibration/calibrate/decode_measurement.h"
#include "calibration/needles/needle.h"
#include "calibration/solvers/divergence.h"
#include "engine/front/engine.h"

namespace eta {

using TokenSpans = std::span<const std::span<const int32_t>>;

// The first row that decoding is measured on: the beginning of the second half of a sequence.
inline int32_t DecodeFrom(std::span<const int32_t> sequence) {
  return static_cast<int32_t>(sequence.size() / 2);
}

int64_t TotalTokens(TokenSpans sequences);

class CalibrationPasses {
 public:
  // All arguments must outlive this object.
  CalibrationPasses(Engine& engine, const std::string& id, const std::string& tenant,
                    CalibrationClock& clock, const std::stop_token& stop);

  enum class Rows : uint8_t { kAll, kSecondHalf };
  // Collects the cells of the sequences as prompts. Errors are those of RunPasses and
  // CollectedCells.
  absl::StatusOr<CollectedCells> Collect(TokenSpans sequences, const AttentionChoice& attention,
                                         Rows rows);

  struct Wanted {
    bool perplexity = false;
    bool recall = false;
    bool mass = false;  // retained mass
    // Full attention's logits, with perplexity: full attention fills them in, at a sample of the
    // rows (divergence_rows.h), and any other attention measures its divergence from them, on the
    // same sequences. Null: not wanted.
    KeptLogits* full_logits = nullptr;
  };
  // Measures the second halves of the sequences as decode rows. With full attention only perplexity
  // is measured. Errors are those of RunPasses.
  absl::StatusOr<DecodeMeasurement> Measure(TokenSpans sequences, const AttentionChoice& attention,
                                            Wanted wanted);

  // For each window, whether every token of its answer is the one that the model finds most
  // probable. Rows from the question on are decode rows. Errors are those of RunPasses.
  absl::StatusOr<std::vector<bool>> Retrieve(std::span<const NeedleWindow> windows,
                                             const AttentionChoice& attention);

 private:
  absl::Status Run(TokenSpans sequences, size_t window, const std::function<Pass(size_t)>& make,
                   const std::function<absl::Status(size_t, PassOutcome)>& collect);
  Pass Start(std::span<const int32_t> sequence, const AttentionChoice& attention) const;

  Engine& engine_;
  const std::string& id_;
  const std::string& tenant_;
  CalibrationClock& clock_;
  const std::stop_token& stop_;
};

}  // namespace eta
