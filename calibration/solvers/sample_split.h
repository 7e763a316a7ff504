// Cuts samples into the sequences that calibration runs on, and chooses which are held out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace eta {

struct SplitOptions {
  int32_t sequence_tokens = 2048;  // of a whole sequence
  int32_t min_tokens = 0;          // the rest of a sample counts if it is at least this long
  int32_t bos_id = -1;             // is put in front of every sequence; -1: nothing is
  double held_out = 0.25;          // share of the sequences, (0, 0.9]
};

struct SampleSplit {
  std::vector<std::vector<int32_t>> calibration;  // at least 1
  std::vector<std::vector<int32_t>> held_out;     // at least 1

  static int64_t Tokens(std::span<const std::vector<int32_t>> sequences);
};

// Cuts every sample from its beginning into sequences of sequence_tokens. Each sequence begins with
// bos_id, as a prompt does, also in the middle of a sample: that token draws attention in many
// models.
std::vector<std::vector<int32_t>> CutSamples(std::span<const std::vector<int32_t>> samples,
                                             const SplitOptions& options);

// Of n sequences, in order, round(held_out * n) are held out, at least one and not all, evenly
// spaced. So a sample of several sequences is on both sides. The same samples are always split in
// the same way. InvalidArgument, naming samples, for fewer than 2 sequences.
absl::StatusOr<SampleSplit> SplitSamples(std::span<const std::vector<int32_t>> samples,
                                         const SplitOptions& options);

// At most `count` of `sequences`, evenly spaced over them, in order: themselves (0: all), or views.
std::vector<std::vector<int32_t>> KeepSpread(std::vector<std::vector<int32_t>> sequences,
                                             int32_t count);
std::vector<std::span<const int32_t>> SpreadOver(std::span<const std::vector<int32_t>> sequences,
                                                 int32_t count);

}  // namespace eta
