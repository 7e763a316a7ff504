// EstimateMass is what rows with relative thresholds compare (eta-semantics.md, "Relative
// thresholds"): from q [d] and the records, for every full block an estimate of the log-sum-exp of
// its scores, and for the row a lower estimate of the log-sum-exp of all of them. All is in
// float32, since the contract compares in this precision.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/ops.h"
#include "kernels/relative_threshold.h"

namespace eta::reference {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();  // log of 0

// log(exp(a) + exp(b))
float LogAdd(float a, float b) {
  const float max = std::max(a, b);
  return max == kEmpty ? kEmpty : max + std::log(std::exp(a - max) + std::exp(b - max));
}

// Of one block, by its record: m, sd and o.
struct BlockScores {
  float mean = 0.0f;
  float deviation = 0.0f;
  float outlier = 0.0f;
};

BlockScores ScoresOf(const Record& record, const float* q, int32_t head_dim, float scale) {
  float mean = 0.0f;
  float variance = 0.0f;
  float outlier = 0.0f;
  for (int32_t i = 0; i < head_dim; ++i) {
    mean += q[i] * record.mu[i];
    variance += q[i] * q[i] * record.sigma[i] * record.sigma[i];
    outlier += q[i] * record.outlier[i];
  }
  return {scale * mean, scale * std::sqrt(variance / kEnvelope), scale * outlier};
}

// l_j: the mass of `count` Gaussian keys and the outlier. Beyond the deviation that so many keys
// are expected to hold, the mean of exp() would be that of keys that are not there.
float BlockMass(const BlockScores& scores, int32_t count) {
  if (count == 0) return scores.outlier;
  const float log_count = std::log(static_cast<float>(count));
  const float reach = std::sqrt(2.0f * log_count);
  const float sd = scores.deviation;
  const float lift = sd < reach ? sd * sd / 2.0f : reach * sd;
  return LogAdd(log_count + scores.mean + lift, scores.outlier);
}

}  // namespace

bool AlwaysRead(const AttentionOptions& options, int32_t ordinal, int32_t n) {
  return ordinal < options.sink_blocks || ordinal >= n - options.pinned_blocks;
}

EstimatedMass EstimateMass(const KvPages& pages, const Row& row, int32_t kv_head, const float* q,
                           float softmax_scale) {
  const KvGeometry& geometry = pages.geometry();
  const int32_t b = geometry.block_size;
  const int32_t n = row.num_full_blocks(b);
  const int32_t others = b - 1;  // keys of a block beside its outlier
  const auto add_key = [&](float sum, int32_t position) {
    const double score =
        Score(pages, q, pages.Slot(row.sequence, position), kv_head, softmax_scale);
    return LogAdd(sum, static_cast<float>(score));
  };
  EstimatedMass mass;
  float row_mass = kEmpty;
  for (int32_t j = 0; j < n; ++j) {
    const BlockScores scores = ScoresOf(pages.RecordOf(KvPages::Block(row.sequence, j), kv_head), q,
                                        geometry.head_dim, softmax_scale);
    mass.blocks.push_back(BlockMass(scores, others));
    if (AlwaysRead(row.sequence.attention, j, n)) {
      for (int32_t t = j * b; t < (j + 1) * b; ++t) row_mass = add_key(row_mass, t);
    } else {
      const float gaussian =
          others > 0 ? std::log(static_cast<float>(others)) + scores.mean : kEmpty;
      row_mass = LogAdd(row_mass, LogAdd(gaussian, scores.outlier));
    }
  }
  for (int32_t t = n * b; t < row.num_keys(); ++t) row_mass = add_key(row_mass, t);
  mass.row = row_mass;
  return mass;
}

}  // namespace eta::reference
