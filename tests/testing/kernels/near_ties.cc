#include "tests/testing/kernels/near_ties.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <sstream>
#include <vector>

namespace eta::testing {
namespace {

// A row of a case's step.
struct StepRow {
  size_t sequence;
  int32_t index;  // in its sequence
  int64_t row;
};

std::vector<StepRow> RowsOf(const AttentionCase& made) {
  std::vector<StepRow> rows;
  int64_t row = 0;
  for (size_t s = 0; s < made.sequences.size(); ++s) {
    for (int32_t i = 0; i < made.sequences[s].num_rows; ++i) rows.push_back({s, i, row++});
  }
  return rows;
}

// By how much scores and masses may differ between backends. An 8-bit cache's keys are not those of
// the case: their scores move by more.
double Rounding(const KvGeometry& geometry) {
  return geometry.dtype == DType::kFloat8E4M3 ? 0.3 : Clearance(geometry);
}

// The same of scores alone. A backend may round queries to 16 bits; of kind outlier some keys are 4
// times as large.
double ScoreRounding(const KvGeometry& geometry) {
  const double rounding = geometry.dtype == DType::kFloat8E4M3 ? 0.3
                          : geometry.dtype == DType::kFloat32  ? 1e-3
                                                               : 3e-2;
  return geometry.index == IndexKind::kOutlier ? 2 * rounding : rounding;
}

// What one row compares with its thresholds, in double.
class RowMargins {
 public:
  RowMargins(const AttentionCase& made, AttentionStep& step, const StepRow& place)
      : made_(made),
        step_(step),
        sequence_(made.sequences[place.sequence]),
        place_(place),
        num_keys_(sequence_.position + place.index + 1),
        full_(num_keys_ / made.geometry.block_size),
        rounding_(Rounding(made.geometry)) {}

  // Relative thresholds: the blocks that a head may admit or not, as rounding has it. Their margins
  // are about 0, or they compete for the rescue.
  std::vector<bool> Ties(int32_t query_head) const {
    const std::vector<double> margins = Margins(query_head);
    std::vector<bool> ties;
    for (const double margin : margins) ties.push_back(std::abs(margin) <= rounding_);
    const auto early = std::span(margins).first(static_cast<size_t>(RescueEnd()));
    const bool served =
        std::ranges::any_of(early, [&](double margin) { return margin > rounding_; });
    if (served || early.empty()) return ties;
    const double best = std::ranges::max(early);
    for (size_t j = 0; j < early.size(); ++j) {
      ties[j] = ties[j] || early[j] >= best - 2 * rounding_;
    }
    return ties;
  }

  // Confirmed reads: the blocks that a head may keep or not. Their true maximum, or true log-mass,
  // is near the effective threshold.
  std::vector<bool> KeepTies(int32_t query_head) const {
    const bool relative = sequence_.attention.relative;
    const double threshold = relative ? Threshold(query_head) : GivenThreshold(query_head);
    std::vector<bool> ties;
    for (int32_t j = 0; j < full_; ++j) {
      double max = -HUGE_VAL;
      double sum = 0.0;
      for (int32_t i = 0; i < made_.geometry.block_size; ++i) {
        const int32_t t = j * made_.geometry.block_size + i;
        if (Tempered(t)) continue;
        const double score = Score(query_head, t);
        max = std::max(max, score);
        sum += std::exp(score);
      }
      const double margin = (relative ? std::log(sum) : max) - threshold;
      ties.push_back(std::abs(margin) <= ScoreRounding(made_.geometry));
    }
    return ties;
  }

  // The keys that may reach the effective threshold or not.
  int64_t NearKeys(int32_t query_head) const {
    const double threshold = Threshold(query_head);
    int64_t keys = 0;
    for (int32_t t = 0; t < num_keys_; ++t) {
      if (std::abs(Score(query_head, t) - threshold) <= rounding_) ++keys;
    }
    return keys;
  }

 private:
  // Of one block, by its record: m, sd and o.
  struct Scores {
    double mean = 0.0;
    double deviation = 0.0;
    double outlier = 0.0;
  };

  Scores ScoresOf(int32_t query_head, int32_t j) const {
    const BlockRecord record = step_.Record(place_.sequence, j, query_head / made_.group());
    const float* q = Query(query_head);
    Scores scores;
    double variance = 0.0;
    for (size_t i = 0; i < record.mu.size(); ++i) {
      const double x = made_.softmax_scale() * q[i];
      scores.mean += x * record.mu[i];
      scores.outlier += x * record.outlier[i];
      variance += x * x * record.sigma[i] * record.sigma[i] / 2.68;
    }
    scores.deviation = std::sqrt(variance);
    return scores;
  }

  // l_j less the effective threshold.
  std::vector<double> Margins(int32_t query_head) const {
    const double reach = others() > 1 ? std::sqrt(2.0 * std::log(others())) : 0.0;
    const double threshold = Threshold(query_head);
    std::vector<double> margins;
    for (int32_t j = 0; j < full_; ++j) {
      const Scores scores = ScoresOf(query_head, j);
      const double sd = scores.deviation;
      const double lift = sd < reach ? sd * sd / 2 : reach * sd - reach * reach / 2;
      margins.push_back(
          std::log(others() * std::exp(scores.mean + lift) + std::exp(scores.outlier)) - threshold);
    }
    return margins;
  }

  // Lhat + c - a.
  double Threshold(int32_t query_head) const {
    // Sum of exponentials.
    double row = made_.sinks.empty() ? 0.0 : std::exp(made_.sinks[static_cast<size_t>(query_head)]);
    for (int32_t j = 0; j < full_; ++j) {
      if (Always(j)) continue;
      const Scores scores = ScoresOf(query_head, j);
      row += others() * std::exp(scores.mean) + std::exp(scores.outlier);
    }
    for (int32_t t = 0; t < num_keys_; ++t) {
      const int32_t j = t / made_.geometry.block_size;
      if (j == full_ || Always(j)) row += std::exp(Score(query_head, t));
    }
    return std::log(row) + sequence_.attention.relative_c - sequence_.attention.offset;
  }

  // Absolute thresholds: tau_eff, frozen or predicted.
  double GivenThreshold(int32_t query_head) const {
    const auto h = static_cast<size_t>(query_head);
    const double lower = sequence_.attention.offset;
    if (!sequence_.thresholds.empty()) return sequence_.thresholds[h] - lower;
    double threshold = made_.predictor_bias[h];
    for (int64_t i = 0; i < made_.q.cols; ++i) {
      threshold += double{made_.predictor_weight.row(query_head)[i]} * made_.q.row(place_.row)[i];
    }
    return threshold - lower;
  }

  bool Tempered(int32_t t) const {
    const auto word = static_cast<size_t>(t / 64);
    return made_.gate == Gate::kSilu && t != num_keys_ - 1 && word < sequence_.tempered.size() &&
           (sequence_.tempered[word] >> (t % 64) & 1) != 0;
  }
  double others() const { return made_.geometry.block_size - 1; }
  bool Always(int32_t j) const {
    return j < sequence_.attention.sink_blocks || j >= full_ - sequence_.attention.pinned_blocks;
  }
  // Of the blocks that a rescue chooses from; 0: no head can be empty.
  int32_t RescueEnd() const {
    const AttentionOptions& options = sequence_.attention;
    const int32_t chunk = std::min(options.rescue_chunk, full_);
    return options.sink_blocks > 0 || full_ - options.pinned_blocks < chunk ? 0 : chunk;
  }
  const float* Query(int32_t query_head) const {
    return made_.q.row(place_.row) + int64_t{query_head} * made_.geometry.head_dim;
  }
  double Score(int32_t query_head, int32_t t) const {
    const float* q = Query(query_head);
    const int64_t kv_head = query_head / made_.group();
    const float* key = sequence_.k.row(t) + kv_head * made_.geometry.head_dim;
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
  const StepRow place_;
  const int32_t num_keys_;
  const int32_t full_;
  const double rounding_;
};

// The blocks of one list that two selections hold for other heads, with a bit for each such head.
std::map<uint32_t, uint32_t> Changes(const std::vector<SelectedBlock>& got,
                                     const std::vector<SelectedBlock>& want) {
  std::map<uint32_t, uint32_t> masks(want.begin(), want.end());
  for (const auto& [block, mask] : got) masks[block] ^= mask;
  std::erase_if(masks, [](const auto& entry) { return entry.second == 0; });
  return masks;
}

// Judges the lists of one row and KV head.
class ListJudge {
 public:
  ListJudge(const AttentionCase& made, const StepRow& place, int32_t kv_head,
            const AttentionResult& got, const AttentionResult& want)
      : made_(made),
        place_(place),
        attention_(made.sequences[place.sequence].attention),
        first_head_(kv_head * made.group()),
        list_(static_cast<size_t>(place.row * made.geometry.num_kv_heads + kv_head)),
        got_(got),
        want_(want) {}

  bool Same() const {
    bool same = got_.selection[list_] == want_.selection[list_] &&
                got_.tokens_read[list_] == want_.tokens_read[list_] &&
                got_.values_read[list_] == want_.values_read[list_];
    for (int32_t g = 0; g < made_.group(); ++g) same = same && MoreAttended(g) == 0;
    return same;
  }

  // What differs by more than ties.
  std::string Differences(AttentionStep& reference) const {
    const std::string where =
        "row " + std::to_string(place_.row) + ", heads from " + std::to_string(first_head_);
    const SequenceCase& sequence = made_.sequences[place_.sequence];
    const bool decodes = sequence.kind == RowKind::kDecode;
    const bool relative = sequence.selects() && attention_.relative && !attention_.admit_all;
    const bool confirm = decodes && attention_.confirm && !attention_.admit_all;
    if (!relative && !confirm) return where + " differ; ";
    const RowMargins margins(made_, reference, place_);
    std::vector<std::vector<bool>> ties;  // blocks that a head may admit or not
    std::vector<std::vector<bool>> keep_ties;
    for (int32_t g = 0; g < made_.group(); ++g) {
      ties.push_back(relative ? margins.Ties(first_head_ + g) : NoTies());
      keep_ties.push_back(confirm ? margins.KeepTies(first_head_ + g) : NoTies());
    }
    std::ostringstream text;
    const auto more = static_cast<int64_t>(got_.selection[list_].size()) -
                      static_cast<int64_t>(want_.selection[list_].size());
    if (got_.tokens_read[list_] - want_.tokens_read[list_] != more * made_.geometry.block_size) {
      text << where << " read " << got_.tokens_read[list_] << " tokens; ";
    }
    if (got_.values_read[list_] - want_.values_read[list_] != Kept(got_) - Kept(want_)) {
      text << where << " read V of " << got_.values_read[list_] << " tokens; ";
    }
    for (int32_t g = 0; g < made_.group(); ++g) {
      const auto most = std::ranges::count(ties[static_cast<size_t>(g)], true);
      if (std::abs(MoreAttended(g)) <= most * made_.geometry.block_size) continue;
      text << where << ": " << g << " attends to " << MoreAttended(g) << " more; ";
    }
    for (const auto& [block, mask] : Changes(got_.selection[list_], want_.selection[list_])) {
      uint32_t tied = 0;
      for (size_t g = 0; g < ties.size(); ++g) {
        tied |= ties[g][block] || keep_ties[g][block] ? uint32_t{1} << g : 0;
      }
      if (attention_.shared_reads && tied != 0) tied = ~uint32_t{0};
      if ((mask & ~tied) != 0) text << where << ": block " << block << "; ";
    }
    return text.str();
  }

 private:
  std::vector<bool> NoTies() const {
    const SequenceCase& sequence = made_.sequences[place_.sequence];
    const int32_t num_keys = sequence.position + place_.index + 1;
    return std::vector<bool>(static_cast<size_t>(num_keys / made_.geometry.block_size));
  }
  // Tokens of the blocks that some head keeps.
  int64_t Kept(const AttentionResult& result) const {
    const auto& list = result.selection[list_];
    return made_.geometry.block_size * std::ranges::count_if(list, [](const SelectedBlock& block) {
             return block.second != 0;
           });
  }
  int32_t MoreAttended(int32_t g) const {
    const auto head = static_cast<size_t>(place_.row * made_.num_query_heads + first_head_ + g);
    return got_.tokens_attended[head] - want_.tokens_attended[head];
  }

  const AttentionCase& made_;
  const StepRow place_;
  const AttentionOptions& attention_;
  const int32_t first_head_;
  const size_t list_;
  const AttentionResult& got_;
  const AttentionResult& want_;
};

// By how much counts of recall of one query head may differ, beyond what rounding does to absolute
// thresholds: by keys at relative ones, and by keys of blocks that are read in one selection only.
struct RecallTies {
  int64_t above = 0;
  int64_t admitted = 0;
};

RecallTies RecallTiesOf(const AttentionCase& made, AttentionStep& reference,
                        const AttentionResult& got, const AttentionResult& want, int32_t head) {
  RecallTies ties;
  for (const StepRow& place : RowsOf(made)) {
    const SequenceCase& sequence = made.sequences[place.sequence];
    if (sequence.kind != RowKind::kDecode || !sequence.attention.relative) continue;
    ties.above += RowMargins(made, reference, place).NearKeys(head);
    const auto list =
        static_cast<size_t>(place.row * made.geometry.num_kv_heads + head / made.group());
    for (const auto& [block, mask] : Changes(got.selection[list], want.selection[list])) {
      if ((mask >> (head % made.group()) & 1) != 0) ties.admitted += made.geometry.block_size;
    }
  }
  ties.admitted += ties.above;
  return ties;
}

}  // namespace

std::string ShadowDifferences(const AttentionCase& made, const AttentionResult& got,
                              const AttentionResult& want, double tolerance) {
  std::ostringstream text;
  const auto heads = static_cast<size_t>(made.num_query_heads);
  for (size_t r = 0; r < want.shadow_rows.size(); ++r) {
    if (!SameSelection(made, want.shadow_rows[r], got, want)) continue;
    for (size_t at = r * heads; at < (r + 1) * heads; ++at) {
      // Where little mass is kept, the error of an output is many times the output. A NaN is not
      // near anything.
      const double near_error = 2 * tolerance * std::max(1.0, double{want.error[at]});
      const bool near = std::abs(got.mass[at] - want.mass[at]) < tolerance &&
                        std::abs(got.error[at] - want.error[at]) < near_error;
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
  std::string text;
  for (const StepRow& place : RowsOf(made)) {
    for (int32_t kv_head = 0; kv_head < made.geometry.num_kv_heads; ++kv_head) {
      const ListJudge judge(made, place, kv_head, got, want);
      if (!judge.Same()) text += judge.Differences(reference);
    }
  }
  return text;
}

std::string RecallDifferences(const AttentionCase& made, AttentionStep& reference,
                              const AttentionResult& got, const AttentionResult& want) {
  std::ostringstream text;
  for (int32_t h = 0; h < made.num_query_heads; ++h) {
    const auto at = static_cast<size_t>(h);
    const int64_t above = std::abs(got.above[at] - want.above[at]);
    const int64_t admitted = std::abs(got.above_admitted[at] - want.above_admitted[at]);
    // A score may lie within rounding of a threshold.
    const int64_t slack = 1 + want.above[at] / 10'000;
    if (above <= slack && admitted <= slack) continue;
    const RecallTies ties = RecallTiesOf(made, reference, got, want, h);
    if (above <= slack + ties.above && admitted <= slack + ties.admitted) continue;
    text << "head " << h << ": recall " << got.above_admitted[at] << " of " << got.above[at]
         << ", not " << want.above_admitted[at] << " of " << want.above[at] << "; ";
  }
  return text.str();
}

}  // namespace eta::testing
