#include "tests/bench/eta_bench/oracle.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "tests/bench/eta_bench/rows.h"

namespace eta::bench {
namespace {

const AttentionOptions kOptions;

float Bound(const BlockRecord& record, const float* q, float scale) {
  double mean = 0.0;
  double variance = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < record.mu.size(); ++i) {
    const double x = q[i];
    const double spread = x * record.sigma[i];
    mean += x * record.mu[i];
    variance += spread * spread;
    norm += x * x;
  }
  const double length = std::sqrt(norm);
  const double bound = mean + length * record.mu_error + kOptions.z * std::sqrt(variance);
  return static_cast<float>(scale * std::min(bound, length * record.max_norm));
}

}  // namespace

Oracle::Oracle(const KvContent& content, std::span<const BlockRecord> records,
               int32_t num_query_heads, std::span<const SequencePlace> sequences,
               std::span<const float> queries, cpu::Workers& workers)
    : content_(content),
      num_query_heads_(num_query_heads),
      softmax_scale_(1.0f / std::sqrt(static_cast<float>(content.geometry().head_dim))),
      sequences_(sequences),
      queries_(queries),
      workers_(workers) {
  const auto blocks = static_cast<size_t>(content.num_blocks());
  const auto kv_heads = static_cast<size_t>(content.geometry().num_kv_heads);
  const auto d = static_cast<size_t>(content.geometry().head_dim);
  const size_t vectors = sequences.size() * static_cast<size_t>(num_query_heads);
  bounds_.resize(vectors * blocks);
  sorted_.resize(vectors * blocks);
  workers.Run(static_cast<int64_t>(vectors), [&](int64_t vector, int) {
    const auto i = static_cast<size_t>(vector);
    const size_t kv_head = i % static_cast<size_t>(num_query_heads_) / static_cast<size_t>(group());
    for (size_t j = 0; j < blocks; ++j) {
      bounds_[i * blocks + j] =
          Bound(records[j * kv_heads + kv_head], queries.data() + i * d, softmax_scale_);
    }
    const auto begin = sorted_.begin() + static_cast<std::ptrdiff_t>(i * blocks);
    const auto end = begin + static_cast<std::ptrdiff_t>(blocks);
    std::copy_n(bounds_.begin() + static_cast<std::ptrdiff_t>(i * blocks), blocks, begin);
    std::sort(begin, end, std::greater<>());
  });
}

// Each head admits `share` of the content blocks, rounded up or down at random. The threshold then
// moves to the nearest clear gap between two bounds.
std::vector<float> Oracle::ThresholdsAt(double share) const {
  const auto blocks = static_cast<size_t>(content_.num_blocks());
  std::vector<float> thresholds(sorted_.size() / blocks);
  for (size_t i = 0; i < thresholds.size(); ++i) {
    const float* sorted = sorted_.data() + i * blocks;
    const double dither = 0.5 + 0.25 * std::clamp(RandomNormal(99, i), -1.9f, 1.9f);
    auto rank = static_cast<size_t>(share * static_cast<double>(blocks) + dither);
    rank = std::min(rank, blocks);
    while (rank > 0 && rank < blocks && sorted[rank - 1] - sorted[rank] < 2 * clearance()) ++rank;
    thresholds[i] = rank == 0        ? sorted[0] + 1.0f
                    : rank == blocks ? sorted[blocks - 1] - 1.0f
                                     : 0.5f * (sorted[rank - 1] + sorted[rank]);
  }
  return thresholds;
}

std::vector<float> Oracle::ThresholdsFor(double wanted) const {
  double low = 0.0;
  double high = 1.0;
  std::vector<float> best;
  double distance = HUGE_VAL;
  for (int i = 0; i < 14; ++i) {
    const double share = 0.5 * (low + high);
    std::vector<float> thresholds = ThresholdsAt(share);
    const double density = UnionDensity(Count(thresholds, false));
    (density < wanted ? low : high) = share;
    if (std::abs(density - wanted) >= distance) continue;
    distance = std::abs(density - wanted);
    best = std::move(thresholds);
  }
  return best;
}

std::vector<bool> Oracle::Admitted(int32_t row, int32_t head, float threshold,
                                   bool admit_all) const {
  const SequencePlace& place = sequences_[static_cast<size_t>(row)];
  const int32_t n = place.num_tokens / content_.geometry().block_size;
  const float* bounds = Bounds(row, head);
  const auto bound = [&](int32_t j) { return bounds[content_.BlockAt(place.id, j)]; };
  std::vector<bool> admitted(static_cast<size_t>(n));
  for (int32_t j = 0; j < n; ++j) {
    admitted[static_cast<size_t>(j)] =
        admit_all || j >= n - kOptions.pinned_blocks || bound(j) >= threshold;
  }
  const int32_t chunk = std::min(kOptions.rescue_chunk, n);
  if (chunk > 0 &&
      std::find(admitted.begin(), admitted.begin() + chunk, true) == admitted.begin() + chunk) {
    int32_t best = 0;
    for (int32_t j = 1; j < chunk; ++j) {
      if (bound(j) > bound(best)) best = j;
    }
    admitted[static_cast<size_t>(best)] = true;
  }
  return admitted;
}

ExpectedCounts Oracle::Count(std::span<const float> thresholds, bool admit_all) const {
  const int32_t b = content_.geometry().block_size;
  const auto kv_heads = static_cast<size_t>(content_.geometry().num_kv_heads);
  ExpectedCounts counts;
  counts.tokens_attended.resize(sequences_.size() * static_cast<size_t>(num_query_heads_));
  counts.tokens_read.resize(sequences_.size() * kv_heads);
  workers_.Run(static_cast<int64_t>(counts.tokens_read.size()), [&](int64_t list, int) {
    const auto row = static_cast<int32_t>(list / content_.geometry().num_kv_heads);
    const auto kv_head = static_cast<int32_t>(list % content_.geometry().num_kv_heads);
    const int32_t num_tokens = sequences_[static_cast<size_t>(row)].num_tokens;
    const int32_t tail = num_tokens % b;
    std::vector<bool> any(static_cast<size_t>(num_tokens / b));
    for (int32_t g = 0; g < group(); ++g) {
      const int32_t head = kv_head * group() + g;
      const size_t at = static_cast<size_t>(row) * static_cast<size_t>(num_query_heads_) +
                        static_cast<size_t>(head);
      const std::vector<bool> admitted = Admitted(row, head, thresholds[at], admit_all);
      counts.tokens_attended[at] =
          tail + b * static_cast<int32_t>(std::count(admitted.begin(), admitted.end(), true));
      for (size_t j = 0; j < any.size(); ++j) any[j] = any[j] || admitted[j];
    }
    counts.tokens_read[static_cast<size_t>(list)] =
        tail + b * static_cast<int32_t>(std::count(any.begin(), any.end(), true));
  });
  return counts;
}

namespace {

double Density(std::span<const int32_t> tokens, std::span<const SequencePlace> sequences) {
  double possible = 0.0;
  for (const SequencePlace& sequence : sequences) possible += sequence.num_tokens;
  possible *= static_cast<double>(tokens.size()) / static_cast<double>(sequences.size());
  return std::accumulate(tokens.begin(), tokens.end(), 0.0) / possible;
}

}  // namespace

double Oracle::UnionDensity(const ExpectedCounts& counts) const {
  return Density(counts.tokens_read, sequences_);
}

double Oracle::HeadDensity(const ExpectedCounts& counts) const {
  return Density(counts.tokens_attended, sequences_);
}

std::vector<float> Oracle::Output(int32_t row, int32_t head, float threshold,
                                  bool admit_all) const {
  const SequencePlace& place = sequences_[static_cast<size_t>(row)];
  const int32_t b = content_.geometry().block_size;
  const auto d = static_cast<size_t>(content_.geometry().head_dim);
  const int32_t kv_head = head / group();
  const std::vector<bool> admitted = Admitted(row, head, threshold, admit_all);
  // How often each content token is attended to with its gate, and how often it is pruned. The last
  // token is the row's own, which has no gate.
  std::vector<int32_t> gated(static_cast<size_t>(content_.num_tokens()));
  std::vector<int32_t> pruned(gated.size());
  for (int32_t t = 0; t + 1 < place.num_tokens; ++t) {
    const auto block = static_cast<size_t>(t / b);
    const bool attended = block >= admitted.size() || admitted[block];
    ++(attended ? gated : pruned)[static_cast<size_t>(content_.TokenAt(place.id, t))];
  }
  const float* q =
      queries_.data() + (static_cast<size_t>(row) * static_cast<size_t>(num_query_heads_) +
                         static_cast<size_t>(head)) *
                            d;
  std::vector<double> sum(d);
  double denominator = 0.0;
  // Scores here are moderate, so exp() needs no maximum subtracted.
  const auto add = [&](int32_t token, double weight) {
    const float* v = content_.Value(token, kv_head);
    for (size_t i = 0; i < d; ++i) sum[i] += weight * v[i];
    denominator += weight;
  };
  const auto score = [&](int32_t token) {
    const float* k = content_.Key(token, kv_head);
    double dot = 0.0;
    for (size_t i = 0; i < d; ++i) dot += static_cast<double>(q[i]) * k[i];
    return softmax_scale_ * dot;
  };
  for (int32_t token = 0; token < content_.num_tokens(); ++token) {
    const auto at = static_cast<size_t>(token);
    double weight = pruned[at];
    if (gated[at] > 0) {
      const double s = score(token);
      weight += gated[at] * std::exp(s / (1.0 + std::exp(-kGateBeta * (s - threshold))));
    }
    if (weight > 0.0) add(token, weight);
  }
  const int32_t own = content_.TokenAt(place.id, place.num_tokens - 1);
  add(own, std::exp(score(own)));
  std::vector<float> out(d);
  for (size_t i = 0; i < d; ++i) out[i] = static_cast<float>(sum[i] / denominator);
  return out;
}

}  // namespace eta::bench
