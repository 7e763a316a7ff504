#include "calibration/solvers/sample_split.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta {
namespace {

void Cut(std::span<const int32_t> sample, const SplitOptions& options,
         std::vector<std::vector<int32_t>>& sequences) {
  const auto whole = static_cast<size_t>(options.sequence_tokens);
  while (!sample.empty()) {
    std::vector<int32_t> sequence;
    if (options.bos_id >= 0 && sample.front() != options.bos_id) {
      sequence.push_back(options.bos_id);
    }
    const size_t taken = std::min(whole - sequence.size(), sample.size());
    sequence.insert(sequence.end(), sample.begin(),
                    sample.begin() + static_cast<std::ptrdiff_t>(taken));
    sample = sample.subspan(taken);
    if (sequence.size() >= static_cast<size_t>(options.min_tokens)) {
      sequences.push_back(std::move(sequence));
    }
  }
}

}  // namespace

int64_t SampleSplit::Tokens(std::span<const std::vector<int32_t>> sequences) {
  return std::accumulate(
      sequences.begin(), sequences.end(), int64_t{0},
      [](int64_t sum, const auto& tokens) { return sum + static_cast<int64_t>(tokens.size()); });
}

std::vector<std::vector<int32_t>> CutSamples(std::span<const std::vector<int32_t>> samples,
                                             const SplitOptions& options) {
  std::vector<std::vector<int32_t>> sequences;
  for (const std::vector<int32_t>& sample : samples) Cut(sample, options, sequences);
  return sequences;
}

absl::StatusOr<SampleSplit> SplitSamples(std::span<const std::vector<int32_t>> samples,
                                         const SplitOptions& options) {
  std::vector<std::vector<int32_t>> sequences = CutSamples(samples, options);
  const auto count = static_cast<int64_t>(sequences.size());
  if (count < 2) {
    return InvalidField("samples", absl::StrCat("must give at least 2 sequences of ",
                                                options.min_tokens, " to ", options.sequence_tokens,
                                                " tokens, one of them held out; give ", count));
  }
  const int64_t wanted = std::llround(options.held_out * static_cast<double>(count));
  const int64_t held_out = std::clamp<int64_t>(wanted, 1, count - 1);
  SampleSplit split;
  for (int64_t i = 0; i < count; ++i) {
    const bool out = (i + 1) * held_out / count > i * held_out / count;
    (out ? split.held_out : split.calibration)
        .push_back(std::move(sequences[static_cast<size_t>(i)]));
  }
  return split;
}

std::vector<std::vector<int32_t>> KeepSpread(std::vector<std::vector<int32_t>> sequences,
                                             int32_t count) {
  if (count == 0 || sequences.size() <= static_cast<size_t>(count)) return sequences;
  std::vector<std::vector<int32_t>> taken;
  for (const auto& sequence : SpreadOver(sequences, count)) {
    taken.emplace_back(sequence.begin(), sequence.end());
  }
  return taken;
}

std::vector<std::span<const int32_t>> SpreadOver(std::span<const std::vector<int32_t>> sequences,
                                                 int32_t count) {
  const size_t taken = std::min(static_cast<size_t>(count), sequences.size());
  std::vector<std::span<const int32_t>> spread;
  for (size_t i = 0; i < taken; ++i) spread.emplace_back(sequences[i * sequences.size() / taken]);
  return spread;
}

}  // namespace eta
