// Cuts samples into the sequences that calibration runs on, and deals their documents out. A
// document is wholly on one side: what a profile is verified on is text that it has not seen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace eta {

struct SplitOptions {
  int32_t sequence_tokens = 2048;  // of a whole sequence
  int32_t min_tokens = 0;          // the rest of a sample counts if it is at least this long
  std::vector<int32_t> beginning;  // is put in front of every sequence that lacks it
  double held_out = 0.25;          // share of the tokens, (0, 0.9]
  // Documents of their own to choose on, as many as are held out, at most half of the others.
  bool choice = false;
};

struct SampleSplit {
  std::vector<std::vector<int32_t>> calibration;  // at least 1 sequence
  std::vector<std::vector<int32_t>> choice;       // at least 1 if it was asked for, else none
  std::vector<std::vector<int32_t>> held_out;     // at least 1
  std::vector<bool> is_choice;                    // of both before, in the order of the samples
  int64_t calibration_documents = 0;
  int64_t choice_documents = 0;
  int64_t held_out_documents = 0;
  int64_t equal_documents = 0;  // left out: their sequences are those of a document before them

  // The calibration of the same samples without a choice.
  std::vector<std::vector<int32_t>> NotHeldOut() const;
  static int64_t Tokens(std::span<const std::vector<int32_t>> sequences);
};

// Cuts every sample from its front into sequences of sequence_tokens. Each sequence begins with
// `beginning`, as a prompt does, also in the middle of a sample: those tokens draw attention in
// many models. None where it leaves no room.
std::vector<std::vector<int32_t>> CutSamples(std::span<const std::vector<int32_t>> samples,
                                             const SplitOptions& options);

// `documents` has the number of each sample's document, or is empty: then each sample is one. Of
// equal documents the first is kept; one that gives no sequence does not count. The documents are
// dealt out whole, the longest first, each to the side that lacks most of its share: first what is
// held out, then of the others what is chosen on. The same samples are always split in the same
// way, and with a choice the same documents are held out as without. InvalidArgument, naming
// samples, for fewer documents than sides.
absl::StatusOr<SampleSplit> SplitSamples(std::span<const std::vector<int32_t>> samples,
                                         const SplitOptions& options,
                                         std::span<const int32_t> documents = {});

// At most `count` of `items`, evenly spaced over them, in order; 0: all.
template <typename T>
std::vector<T> KeepSpread(std::vector<T> items, int32_t count) {
  const auto wanted = static_cast<size_t>(count);
  if (wanted == 0 || items.size() <= wanted) return items;
  std::vector<T> kept;
  kept.reserve(wanted);
  for (size_t i = 0; i < wanted; ++i) kept.push_back(std::move(items[i * items.size() / wanted]));
  return kept;
}

// Views of at most `count` of `sequences`, likewise.
std::vector<std::span<const int32_t>> SpreadOver(std::span<const std::vector<int32_t>> sequences,
                                                 int32_t count);

}  // namespace eta
