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
  double share;   // of the tokens
  int64_t least;  // documents
  double tokens = 0.0;
  int64_t documents = 0;
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

// The side of each of these documents. Every side has its least: there are at least as many.
std::vector<size_t> Deal(const std::vector<Sequences>& cut, std::span<const size_t> documents,
                         std::vector<Side> sides) {
  std::vector<double> tokens;
  for (const size_t document : documents) {
    tokens.push_back(static_cast<double>(SampleSplit::Tokens(cut[document])));
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
    size_t needed = 0;
    for (const Side& side : sides) {
      needed += static_cast<size_t>(std::max<int64_t>(0, side.least - side.documents));
    }
    const bool only_needed = order.size() - i <= needed;
    size_t best = sides.size();
    for (size_t s = 0; s < sides.size(); ++s) {
      if (only_needed && sides[s].documents >= sides[s].least) continue;
      if (best == sides.size() || lacks(sides[s]) > lacks(sides[best])) best = s;
    }
    sides[best].tokens += tokens[order[i]];
    ++sides[best].documents;
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

std::vector<std::vector<int32_t>> SampleSplit::NotHeldOut() const {
  Sequences sequences;
  auto of_calibration = calibration.begin();
  auto of_choice = choice.begin();
  for (const bool chosen : is_choice)
    sequences.push_back(chosen ? *of_choice++ : *of_calibration++);
  return sequences;
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
  const size_t sides = options.choice ? 3 : 2;
  if (cut.size() < sides) return TooFewDocuments(cut.size(), sides, split, options);
  // Held-out documents are dealt first. So they are the same with documents to choose on and
  // without, and profiles of both are judged alike. They give way only where too few would be left.
  std::vector<size_t> all(cut.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const double rest = 1.0 - options.held_out;
  const std::vector<size_t> held_out =
      Deal(cut, all, {{rest, options.choice ? 2 : 1}, {options.held_out, 1}});
  std::erase_if(all, [&held_out](size_t document) { return held_out[document] == 1; });
  const double chosen = options.choice ? std::min(options.held_out / rest, 0.5) : 0.0;
  const std::vector<size_t> choice =
      Deal(cut, all, {{1.0 - chosen, 1}, {chosen, options.choice ? 1 : 0}});
  auto next = choice.begin();
  for (size_t i = 0; i < cut.size(); ++i) {
    const bool is_held_out = held_out[i] == 1;
    const bool is_choice = !is_held_out && *next++ == 1;
    Sequences& side = is_held_out ? split.held_out : is_choice ? split.choice : split.calibration;
    ++(is_held_out ? split.held_out_documents
       : is_choice ? split.choice_documents
                   : split.calibration_documents);
    for (auto& sequence : cut[i]) {
      if (!is_held_out) split.is_choice.push_back(is_choice);
      side.push_back(std::move(sequence));
    }
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
