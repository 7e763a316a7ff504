#include "tests/testing/kernels/near_ties.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <vector>

namespace eta::testing {
namespace {

// Relative thresholds of one row, in double: l_j - Lhat of every full block, per query head.
class RowMasses {
 public:
  RowMasses(const AttentionCase& made, AttentionStep& step, size_t s, int32_t i, int64_t row)
      : made_(made), step_(step), sequence_(made.sequences[s]), s_(s), row_(row) {
    num_keys_ = sequence_.position + i + 1;
    full_ = num_keys_ / made.geometry.block_size;
  }

  // l_j - Lhat - c + a: the blocks of which it is near 0 may be admitted or not.
  std::vector<double> Margins(int32_t query_head) const {
    const double scale = made_.softmax_scale();
    const float* q = made_.q.row(row_) + int64_t{query_head} * made_.geometry.head_dim;
    const int32_t kv_head = query_head / made_.group();
    const double others = made_.geometry.block_size - 1;
    const double reach = others > 1 ? std::sqrt(2.0 * std::log(others)) : 0.0;
    std::vector<double> blocks;
    double row = 0.0;  // sum of exponentials
    for (int32_t j = 0; j < full_; ++j) {
      const BlockRecord record = step_.Record(s_, j, kv_head);
      double mean = 0.0;
      double variance = 0.0;
      double outlier = 0.0;
      for (size_t i = 0; i < record.mu.size(); ++i) {
        const double x = scale * q[i];
        mean += x * record.mu[i];
        outlier += x * record.outlier[i];
        variance += x * x * record.sigma[i] * record.sigma[i] / 2.68;
      }
      const double sd = std::sqrt(variance);
      const double lift = sd < reach ? variance / 2 : reach * sd;
      blocks.push_back(std::log(others * std::exp(mean + lift) + std::exp(outlier)));
      if (!Always(j)) row += others * std::exp(mean) + std::exp(outlier);
    }
    for (int32_t t = 0; t < num_keys_; ++t) {
      const int32_t j = t / made_.geometry.block_size;
      if (j < full_ && !Always(j)) continue;
      row += std::exp(Score(q, kv_head, t));
    }
    const AttentionOptions& options = sequence_.attention;
    for (double& block : blocks) block -= std::log(row) + options.relative_c - options.offset;
    return blocks;
  }

 private:
  bool Always(int32_t j) const {
    return j < sequence_.attention.sink_blocks || j >= full_ - sequence_.attention.pinned_blocks;
  }
  double Score(const float* q, int32_t kv_head, int32_t t) const {
    const float* key = sequence_.k.row(t) + int64_t{kv_head} * made_.geometry.head_dim;
    const DType stored = made_.geometry.dtype;
    double dot = 0.0;
    for (int32_t i = 0; i < made_.geometry.head_dim; ++i) {
      dot += static_cast<double>(q[i]) *
             (stored == DType::kFloat8E4M3 ? key[i] : RoundTo(stored, key[i]));
    }
    return made_.softmax_scale() * dot;
  }

  const AttentionCase& made_;
  AttentionStep& step_;
  const SequenceCase& sequence_;
  size_t s_;
  int64_t row_;
  int32_t num_keys_ = 0;
  int32_t full_ = 0;
};

std::map<uint32_t, uint32_t> Masks(const std::vector<SelectedBlock>& selected) {
  return {selected.begin(), selected.end()};
}

}  // namespace

bool HasRelative(const AttentionCase& made) {
  return std::ranges::any_of(made.sequences,
                             [](const SequenceCase& s) { return s.attention.relative; });
}

std::string ShadowDifferences(const AttentionCase& made, const AttentionResult& got,
                              const AttentionResult& want, double tolerance) {
  std::ostringstream text;
  const auto heads = static_cast<size_t>(made.num_query_heads);
  for (size_t r = 0; r < want.shadow_rows.size(); ++r) {
    if (!SameSelection(made, want.shadow_rows[r], got, want)) continue;
    for (size_t at = r * heads; at < (r + 1) * heads; ++at) {
      // A NaN is not near anything.
      const bool near = std::abs(got.mass[at] - want.mass[at]) < tolerance &&
                        std::abs(got.error[at] - want.error[at]) < 2 * tolerance;
      if (near) continue;
      text << "row " << want.shadow_rows[r] << ", head " << at % heads << ": mass " << got.mass[at]
           << ", not " << want.mass[at] << ", error " << got.error[at] << ", not " << want.error[at]
           << "; ";
    }
  }
  return text.str();
}

bool SameSelection(const AttentionCase& made, int64_t row, const AttentionResult& got,
                   const AttentionResult& want) {
  const auto lists = static_cast<size_t>(made.geometry.num_kv_heads);
  const auto begin = static_cast<size_t>(row) * lists;
  return std::equal(got.selection.begin() + static_cast<int64_t>(begin),
                    got.selection.begin() + static_cast<int64_t>(begin + lists),
                    want.selection.begin() + static_cast<int64_t>(begin));
}

std::string SelectionDifferences(const AttentionCase& made, AttentionStep& reference,
                                 const AttentionResult& got, const AttentionResult& want) {
  std::ostringstream text;
  const int32_t kv_heads = made.geometry.num_kv_heads;
  const int32_t b = made.geometry.block_size;
  // An 8-bit cache's keys are not those of the case: their scores move by more.
  const double clearance =
      made.geometry.dtype == DType::kFloat8E4M3 ? 0.3 : Clearance(made.geometry);
  int64_t row = 0;
  for (size_t s = 0; s < made.sequences.size(); ++s) {
    const SequenceCase& sequence = made.sequences[s];
    for (int32_t i = 0; i < sequence.num_rows; ++i, ++row) {
      const bool relative = sequence.attention.relative && sequence.kind == RowKind::kDecode &&
                            !sequence.attention.admit_all;
      for (int32_t h = 0; h < made.num_query_heads; ++h) {
        const int32_t kv_head = h / made.group();
        const auto list = static_cast<size_t>(row * kv_heads + kv_head);
        const auto head = static_cast<size_t>(row * made.num_query_heads + h);
        const int32_t attended = got.tokens_attended[head] - want.tokens_attended[head];
        const bool same = attended == 0 && got.selection[list] == want.selection[list] &&
                          got.tokens_read[list] == want.tokens_read[list];
        if (same) continue;
        if (!relative) {
          text << "row " << row << ", head " << h << " differs; ";
          continue;
        }
        const RowMasses masses(made, reference, s, i, row);
        const std::vector<double> margins = masses.Margins(h);
        const auto ties = std::ranges::count_if(
            margins, [&](double margin) { return std::abs(margin) <= clearance; });
        if (std::abs(attended) > ties * b) {
          text << "row " << row << ", head " << h << " attends to " << attended << " more; ";
        }
        auto masks = Masks(want.selection[list]);
        for (const auto& [block, mask] : got.selection[list]) masks[block] ^= mask;
        for (const auto& [block, mask] : masks) {
          if ((mask >> (h % made.group()) & 1) == 0) continue;
          double nearest = std::abs(margins[block]);
          for (int32_t g = 0; sequence.attention.shared_reads && g < made.group(); ++g) {
            const std::vector<double> mate = masses.Margins(kv_head * made.group() + g);
            nearest = std::min(nearest, std::abs(mate[block]));
          }
          if (nearest <= clearance) continue;
          text << "row " << row << ", head " << h << ", block " << block << " by " << nearest
               << "; ";
        }
      }
    }
  }
  return text.str();
}

}  // namespace eta::testing
