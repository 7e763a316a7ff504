#include "calibration/solvers/sample_split.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/solvers/equal_documents.h"
#include "engine/base/error.h"

namespace eta {
namespace {

using Sequences = std::vector<std::vector<int32_t>>;

struct Side {
  double share;  // of the tokens
  Sequences* sequences;
  int64_t* documents;
  double tokens = 0.0;
};

void Cut(std::span<const int32_t> sample, const SplitOptions& options,
         std::vector<std::vector<int32_t>>& sequences) {
  const auto whole = static_cast<size_t>(options.sequence_tokens);
  const std::vector<int32_t>& beginning = options.beginning;
  if (beginning.size() >= whole) return;
  while (!sample.empty()) {
    std::vector<int32_t> sequence;
    const bool has_beginning = sample.size() >= beginning.size() &&
                               std::equal(beginning.begin(), beginning.end(), sample.begin());
    if (!has_beginning) sequence = beginning;
    const size_t taken = std::min(whole - sequence.size(), sample.size());
    sequence.insert(sequence.end(), sample.begin(),
                    sample.begin() + static_cast<std::ptrdiff_t>(taken));
    sample = sample.subspan(taken);
    if (sequence.size() >= static_cast<size_t>(options.min_tokens)) {
      sequences.push_back(std::move(sequence));
    }
  }
}

std::vector<Sequences> CutDocuments(std::span<const std::vector<int32_t>> samples,
                                    std::span<const int32_t> documents,
                                    const SplitOptions& options) {
  std::vector<Sequences> cut;
  std::map<int32_t, size_t> places;
  for (size_t i = 0; i < samples.size(); ++i) {
    const size_t place =
        documents.empty() ? i : places.emplace(documents[i], places.size()).first->second;
    if (place == cut.size()) cut.emplace_back();
    Cut(samples[i], options, cut[place]);
  }
  std::erase_if(cut, [](const Sequences& document) { return document.empty(); });
  return cut;
}

// The side of each document. No side is left empty: there are at least as many documents.
std::vector<size_t> Deal(const std::vector<Sequences>& documents, std::vector<Side>& sides) {
  std::vector<double> tokens;
  for (const Sequences& document : documents) {
    tokens.push_back(static_cast<double>(SampleSplit::Tokens(document)));
  }
  std::vector<size_t> order(documents.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&tokens](size_t a, size_t b) { return tokens[a] > tokens[b]; });
  std::vector<size_t> side_of(documents.size());
  double dealt = 0.0;
  for (size_t i = 0; i < order.size(); ++i) {
    dealt += tokens[order[i]];
    const auto lacks = [dealt](const Side& side) { return side.share * dealt - side.tokens; };
    const auto empty = static_cast<size_t>(std::count_if(
        sides.begin(), sides.end(), [](const Side& side) { return side.tokens == 0.0; }));
    const bool only_empty = order.size() - i <= empty;
    size_t best = sides.size();
    for (size_t s = 0; s < sides.size(); ++s) {
      if (only_empty && sides[s].tokens > 0.0) continue;
      if (best == sides.size() || lacks(sides[s]) > lacks(sides[best])) best = s;
    }
    sides[best].tokens += tokens[order[i]];
    side_of[order[i]] = best;
  }
  return side_of;
}

absl::Status TooFewDocuments(size_t documents, size_t sides, const SampleSplit& split,
                             const SplitOptions& options) {
  return InvalidField(
      "samples",
      absl::StrCat("must be at least ", sides, " different documents with a sequence of ",
                   options.min_tokens, " to ", options.sequence_tokens, " tokens, ",
                   options.choice ? "one to choose the thresholds on and one held out"
                                  : "one of them held out",
                   "; are ", documents, ", without ", split.equal_documents, " equal to another"));
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
                                         const SplitOptions& options,
                                         std::span<const int32_t> documents) {
  std::vector<Sequences> cut = CutDocuments(samples, documents, options);
  SampleSplit split;
  split.equal_documents = RemoveEqual(cut);
  const double chosen =
      options.choice ? std::min(options.held_out, (1.0 - options.held_out) / 2.0) : 0.0;
  std::vector<Side> sides = {
      {1.0 - options.held_out - chosen, &split.calibration, &split.calibration_documents},
      {options.held_out, &split.held_out, &split.held_out_documents}};
  if (options.choice) sides.push_back({chosen, &split.choice, &split.choice_documents});
  if (cut.size() < sides.size()) return TooFewDocuments(cut.size(), sides.size(), split, options);
  const std::vector<size_t> side_of = Deal(cut, sides);
  for (size_t i = 0; i < cut.size(); ++i) {
    const Side& side = sides[side_of[i]];
    for (auto& sequence : cut[i]) side.sequences->push_back(std::move(sequence));
    ++*side.documents;
  }
  return split;
}

std::vector<std::span<const int32_t>> SpreadOver(std::span<const std::vector<int32_t>> sequences,
                                                 int32_t count) {
  const size_t taken = std::min(static_cast<size_t>(count), sequences.size());
  std::vector<std::span<const int32_t>> spread;
  for (size_t i = 0; i < taken; ++i) spread.emplace_back(sequences[i * sequences.size() / taken]);
  return spread;
}

}  // namespace eta
