// Samples as the sequences that calibration runs on, and which of them are held out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace eta {

struct SplitOptions {
  int32_t sequence_tokens = 2048;  // of a whole sequence
  int32_t min_tokens = 0;          // what is left of a sample counts from here on
  int32_t bos_id = -1;             // stands in front of every sequence; -1: nothing does
  double held_out = 0.25;          // share of the sequences, (0, 0.9]
};

struct SampleSplit {
  std::vector<std::vector<int32_t>> calibration;  // at least 1
  std::vector<std::vector<int32_t>> held_out;     // at least 1

  static int64_t Tokens(std::span<const std::vector<int32_t>> sequences);
};

// Every sample is cut from its beginning into sequences of sequence_tokens, and each sequence
// begins as a prompt does, with bos_id: those cut from a sample's middle too, since that token
// draws attention in many models.
std::vector<std::vector<int32_t>> CutSamples(std::span<const std::vector<int32_t>> samples,
                                             const SplitOptions& options);

// Of the n sequences, in order, round(held_out * n) but at least one and not all are held out,
// evenly spaced: a sample of several sequences stands on both sides. The same samples are always
// split in the same way. InvalidArgument, naming samples, for fewer than 2 sequences.
absl::StatusOr<SampleSplit> SplitSamples(std::span<const std::vector<int32_t>> samples,
                                         const SplitOptions& options);

// At most `count` of `sequences`, evenly spaced over them, in order: themselves (0: all), or views.
std::vector<std::vector<int32_t>> KeepSpread(std::vector<std::vector<int32_t>> sequences,
                                             int32_t count);
std::vector<std::span<const int32_t>> SpreadOver(std::span<const std::vector<int32_t>> sequences,
                                                 int32_t count);

}  // namespace eta
