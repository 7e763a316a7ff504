#include "tests/testing/kernels/cell_differences.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <sstream>

namespace eta::testing {
namespace {

using Cells = std::span<const uint64_t>;

uint64_t Sum(Cells cells) {
  return std::accumulate(cells.begin(), cells.end(), uint64_t{0});
}

double Difference(uint64_t a, uint64_t b) {
  return static_cast<double>(a > b ? a - b : b - a);
}

// Whether every unit of `got` is at most `reach` cells from its place in `want`, except for `slack`
// units that one of them has more; and how much weight moved by one cell otherwise.
struct Moves {
  bool within_reach = true;
  double moved = 0.0;
};

Moves CompareCumulated(Cells got, Cells want, size_t reach, uint64_t slack) {
  Moves moves;
  // For each cell: units of `want` up to and including it.
  std::vector<uint64_t> at_most(want.size());
  std::partial_sum(want.begin(), want.end(), at_most.begin());
  uint64_t sum = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    sum += got[i];
    const uint64_t least = i >= reach ? at_most[i - reach] : 0;
    const uint64_t most = at_most[std::min(i + reach, at_most.size() - 1)];
    moves.within_reach &= sum + slack >= least && sum <= most + slack;
    moves.moved += std::max(0.0, Difference(sum, at_most[i]) - static_cast<double>(slack));
  }
  return moves;
}

class HeadComparison {
 public:
  HeadComparison(const AttentionCase& attention_case, Cells got, Cells want,
                 const CellTolerance& tolerance)
      : at_(attention_case.bins),
        block_size_(attention_case.geometry.block_size),
        got_(got),
        want_(want),
        tolerance_(tolerance) {
    for (const SequenceCase& sequence : attention_case.sequences) {
      if (sequence.calibrate && sequence.kind == RowKind::kPrefill) rows_ += sequence.num_rows;
    }
  }

  std::string Differences() {
    CompareScores();
    CompareOutside(at_.below(), "scores below the range");
    CompareOutside(at_.above(), "scores above the range");
    Compare("scores that are not finite", Of(got_, at_.not_finite()), Of(want_, at_.not_finite()),
            0.0);
    Compare("gates, in units of 2^-48", Of(got_, at_.gate()), Of(want_, at_.gate()),
            tolerance_.gate * kCalibrationUnit * static_cast<double>(rows_));
    CompareNeeded();
    return text_.str();
  }

 private:
  static uint64_t Of(Cells cells, int64_t index) { return cells[static_cast<size_t>(index)]; }

  void Compare(const char* what, uint64_t got, uint64_t want, double slack) {
    if (Difference(got, want) > slack) text_ << "; " << what << ": " << got << ", not " << want;
  }

  // Weights in order of the score: below, the bins, above.
  std::vector<uint64_t> Weights(Cells cells) const {
    std::vector<uint64_t> weights = {Of(cells, at_.below_weight())};
    weights.insert(weights.end(), cells.begin(), cells.begin() + at_.bins);
    weights.push_back(Of(cells, at_.above_weight()));
    return weights;
  }

  void CompareScores() {
    const std::vector<uint64_t> got = Weights(got_);
    const std::vector<uint64_t> want = Weights(want_);
    Compare("weight in all", Sum(got), Sum(want), 0.0);
    const Moves moves = CompareCumulated(got, want, static_cast<size_t>(tolerance_.score_bins), 0);
    const double total = static_cast<double>(Sum(want));
    if (!moves.within_reach) text_ << "; a score is more bins off than rounding explains";
    if (moves.moved > tolerance_.moved * total) {
      text_ << "; share of the scores in another bin: " << moves.moved / total;
    }
  }

  void CompareOutside(int64_t cell, const char* what) {
    const uint64_t want = Of(want_, cell);
    Compare(what, Of(got_, cell), want,
            tolerance_.moved > 0.0 ? 1.0 + tolerance_.moved * static_cast<double>(want) : 0.0);
  }

  void CompareNeeded() {
    const auto first = static_cast<size_t>(at_.needed(0));
    const Cells got = got_.subspan(first, kZUnreachable + 1);
    const Cells want = want_.subspan(first, kZUnreachable + 1);
    const uint64_t got_free = Of(got_, at_.unconditional());
    const uint64_t want_free = Of(want_, at_.unconditional());
    const auto keys = static_cast<double>(Sum(want) + want_free);
    const double slack = tolerance_.above > 0.0 ? 1.0 + tolerance_.above * keys : 0.0;
    Compare("keys above the threshold", Sum(got) + got_free, Sum(want) + want_free, slack);
    Compare("of them unconditional", got_free, want_free, slack);
    const Moves moves = CompareCumulated(got, want, static_cast<size_t>(tolerance_.z_bins),
                                         static_cast<uint64_t>(slack));
    if (!moves.within_reach) text_ << "; a block's z is more bins off than rounding explains";
    if (moves.moved > tolerance_.z_moved * keys + block_size_ + slack) {
      text_ << "; keys at another z: " << moves.moved << " of " << keys;
    }
  }

  CalibrationCells at_;
  int32_t block_size_;
  Cells got_;
  Cells want_;
  const CellTolerance& tolerance_;
  int64_t rows_ = 0;
  std::ostringstream text_;
};

}  // namespace

std::string CellDifferences(const AttentionCase& attention_case, const std::vector<uint64_t>& got,
                            const std::vector<uint64_t>& want, const CellTolerance& tolerance) {
  constexpr int kMost = 5;
  std::ostringstream text;
  if (got.size() != want.size()) {
    text << "\n  " << got.size() << " cells, not " << want.size();
    return text.str();
  }
  const auto size = static_cast<size_t>(CalibrationCells(attention_case.bins).size());
  int found = 0;
  for (size_t head = 0; (head + 1) * size <= want.size() && found < kMost; ++head) {
    const std::string differences =
        HeadComparison(attention_case, Cells(got).subspan(head * size, size),
                       Cells(want).subspan(head * size, size), tolerance)
            .Differences();
    if (differences.empty()) continue;
    ++found;
    text << "\n  head " << head << differences;
  }
  return text.str();
}

}  // namespace eta::testing
