#include "tests/bench/eta_bench/oracle.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "tests/bench/eta_bench/rows.h"

namespace eta::bench {
namespace {

// What a query makes of a record, scaled: <q, mu> and the same with half a step for every element,
// the deviation, and likewise the outlier.
struct Along {
  double mean = 0.0;
  double mean_at_most = 0.0;
  double deviation = 0.0;
  double ceiling = HUGE_VAL;
  double outlier = -HUGE_VAL;
  double outlier_at_most = -HUGE_VAL;
};

Along Multiply(const BlockRecord& record, const float* q, double scale) {
  double mean = 0.0;
  double variance = 0.0;
  double norm = 0.0;
  double size = 0.0;
  double outlier = 0.0;
  const bool has_outlier = !record.outlier.empty();
  for (size_t i = 0; i < record.mu.size(); ++i) {
    const double x = q[i];
    const double spread = x * record.sigma[i];
    mean += x * record.mu[i];
    variance += spread * spread;
    norm += x * x;
    size += std::abs(x);
    if (has_outlier) outlier += x * record.outlier[i];
  }
  const double length = std::sqrt(norm);
  Along along = {.mean = scale * mean,
                 .mean_at_most = scale * (mean + length * record.mu_error + record.step / 2 * size),
                 .deviation = scale * std::sqrt(variance)};
  if (has_outlier) {
    along.outlier = scale * outlier;
    along.outlier_at_most = scale * (outlier + record.outlier_step / 2 * size);
  } else {
    along.ceiling = scale * length * record.max_norm;
  }
  return along;
}

double Bound(const Along& along, double z) {
  return std::max(std::min(along.mean_at_most + z * along.deviation, along.ceiling),
                  along.outlier_at_most);
}

// l_j of a block of `others` + 1 keys, and its term of Lhat, as a logarithm.
double Mass(const Along& along, double others) {
  const double sd = along.deviation / std::sqrt(2.68);
  const double reach = std::sqrt(2.0 * std::log(others));
  const double lift = sd < reach ? sd * sd / 2 : reach * sd - reach * reach / 2;
  return std::log(others * std::exp(along.mean + lift) + std::exp(along.outlier));
}
double Term(const Along& along, double others) {
  return std::log(others * std::exp(along.mean) + std::exp(along.outlier));
}

}  // namespace

Oracle::Oracle(const KvContent& content, const AttentionOptions& options,
               std::span<const BlockRecord> records, int32_t num_query_heads,
               std::span<const SequencePlace> sequences, std::span<const float> queries,
               cpu::Workers& workers)
    : content_(content),
      options_(options),
      num_query_heads_(num_query_heads),
      softmax_scale_(1.0f / std::sqrt(static_cast<float>(content.geometry().head_dim))),
      sequences_(sequences),
      queries_(queries),
      workers_(workers) {
  const auto blocks = static_cast<size_t>(content.num_blocks());
  const auto kv_heads = static_cast<size_t>(content.geometry().num_kv_heads);
  const auto d = static_cast<size_t>(content.geometry().head_dim);
  const double others = content.geometry().block_size - 1;
  const size_t vectors = sequences.size() * static_cast<size_t>(num_query_heads);
  bounds_.resize(vectors * blocks);
  sorted_.resize(vectors * blocks);
  row_masses_.resize(vectors);
  workers.Run(static_cast<int64_t>(vectors), [&](int64_t vector, int) {
    const auto i = static_cast<size_t>(vector);
    const size_t kv_head = i % static_cast<size_t>(num_query_heads_) / static_cast<size_t>(group());
    std::vector<float> terms(blocks);
    for (size_t j = 0; j < blocks; ++j) {
      const Along along =
          Multiply(records[j * kv_heads + kv_head], queries.data() + i * d, softmax_scale_);
      bounds_[i * blocks + j] =
          static_cast<float>(options_.relative ? Mass(along, others) : Bound(along, options_.z));
      if (options_.relative) terms[j] = static_cast<float>(Term(along, others));
    }
    if (options_.relative) {
      row_masses_[i] = RowMass(static_cast<int32_t>(vector / num_query_heads_),
                               static_cast<int32_t>(vector % num_query_heads_), terms);
    }
    const auto begin = sorted_.begin() + static_cast<std::ptrdiff_t>(i * blocks);
    const auto end = begin + static_cast<std::ptrdiff_t>(blocks);
    std::copy_n(bounds_.begin() + static_cast<std::ptrdiff_t>(i * blocks), blocks, begin);
    std::sort(begin, end, std::greater<>());
  });
}

double Oracle::Score(int32_t row, int32_t head, int32_t token) const {
  const auto d = static_cast<size_t>(content_.geometry().head_dim);
  const float* q =
      queries_.data() + (static_cast<size_t>(row) * static_cast<size_t>(num_query_heads_) +
                         static_cast<size_t>(head)) *
                            d;
  const float* k = content_.Key(token, head / group());
  double dot = 0.0;
  for (size_t i = 0; i < d; ++i) dot += static_cast<double>(q[i]) * k[i];
  return softmax_scale_ * dot;
}

bool Oracle::AlwaysRead(int32_t block, int32_t full_blocks) const {
  return block < options_.sink_blocks || block >= full_blocks - options_.pinned_blocks;
}

// Scores here are moderate, so exp() needs no maximum subtracted.
float Oracle::RowMass(int32_t row, int32_t head, std::span<const float> terms) const {
  const SequencePlace& place = sequences_[static_cast<size_t>(row)];
  const int32_t b = content_.geometry().block_size;
  const int32_t n = place.num_tokens / b;
  double sum = 0.0;
  for (int32_t j = 0; j * b < place.num_tokens; ++j) {
    if (j < n && !AlwaysRead(j, n)) {
      sum += std::exp(terms[static_cast<size_t>(content_.BlockAt(place.id, j))]);
      continue;
    }
    for (int32_t t = j * b; t < std::min((j + 1) * b, place.num_tokens); ++t) {
      sum += std::exp(Score(row, head, content_.TokenAt(place.id, t)));
    }
  }
  return static_cast<float>(std::log(sum));
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

OperatingPoint Oracle::PointAt(float c) const {
  OperatingPoint point = {row_masses_, c};
  for (float& threshold : point.thresholds) threshold += c;
  return point;
}

OperatingPoint Oracle::PointFor(double wanted) const {
  // Of the share of blocks, or of -c.
  double low = options_.relative ? -4.0 : 0.0;
  double high = options_.relative ? 32.0 : 1.0;
  OperatingPoint best;
  double distance = HUGE_VAL;
  for (int i = 0; i < (options_.relative ? 20 : 14); ++i) {
    const double middle = 0.5 * (low + high);
    OperatingPoint point = options_.relative ? PointAt(static_cast<float>(-middle))
                                             : OperatingPoint{ThresholdsAt(middle), 0.0f};
    const double density = UnionDensity(Count(point.thresholds, false));
    (density < wanted ? low : high) = middle;
    if (std::abs(density - wanted) >= distance) continue;
    distance = std::abs(density - wanted);
    best = std::move(point);
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
    admitted[static_cast<size_t>(j)] = admit_all || AlwaysRead(j, n) || bound(j) >= threshold;
  }
  const int32_t chunk = std::min(options_.rescue_chunk, n);
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

std::vector<bool> Oracle::Attended(int32_t row, int32_t head, std::span<const float> thresholds,
                                   bool admit_all) const {
  const size_t first = static_cast<size_t>(row) * static_cast<size_t>(num_query_heads_);
  const auto own = static_cast<size_t>(head);
  std::vector<bool> attended = Admitted(row, head, thresholds[first + own], admit_all);
  if (!options_.shared_reads) return attended;
  const int32_t of_group = head / group() * group();
  for (int32_t h = of_group; h < of_group + group(); ++h) {
    const std::vector<bool> mate =
        Admitted(row, h, thresholds[first + static_cast<size_t>(h)], admit_all);
    for (size_t j = 0; j < mate.size(); ++j) attended[j] = attended[j] || mate[j];
  }
  return attended;
}

bool Oracle::Agrees(const ExpectedCounts& got, std::span<const float> thresholds,
                    bool admit_all) const {
  const ExpectedCounts want = Count(thresholds, admit_all);
  if (!options_.relative || admit_all) {
    return got.tokens_read == want.tokens_read && got.tokens_attended == want.tokens_attended;
  }
  constexpr float kTie = 1e-4f;
  const int32_t b = content_.geometry().block_size;
  const auto heads = static_cast<size_t>(num_query_heads_);
  std::vector<int32_t> read_ties(want.tokens_read.size());
  for (size_t i = 0; i < want.tokens_attended.size(); ++i) {
    const auto row = static_cast<int32_t>(i / heads);
    const auto head = static_cast<int32_t>(i % heads);
    const SequencePlace& place = sequences_[static_cast<size_t>(row)];
    int32_t ties = 0;
    for (int32_t j = 0; j < place.num_tokens / b; ++j) {
      const float mass = Bounds(row, head)[content_.BlockAt(place.id, j)];
      ties += std::abs(mass - thresholds[i]) < kTie ? 1 : 0;
    }
    read_ties[i / static_cast<size_t>(group())] += ties;
    if (std::abs(got.tokens_attended[i] - want.tokens_attended[i]) > ties * b) return false;
  }
  for (size_t i = 0; i < read_ties.size(); ++i) {
    if (std::abs(got.tokens_read[i] - want.tokens_read[i]) > read_ties[i] * b) return false;
  }
  return true;
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

std::vector<float> Oracle::Output(int32_t row, int32_t head, std::span<const float> thresholds,
                                  bool admit_all) const {
  const SequencePlace& place = sequences_[static_cast<size_t>(row)];
  const int32_t b = content_.geometry().block_size;
  const auto d = static_cast<size_t>(content_.geometry().head_dim);
  const float threshold =
      thresholds[static_cast<size_t>(row) * static_cast<size_t>(num_query_heads_) +
                 static_cast<size_t>(head)];
  const std::vector<bool> reads = Attended(row, head, thresholds, admit_all);
  // How often each content token is attended to with its gate, and how often it is pruned. The last
  // token is the row's own, which has no gate.
  std::vector<int32_t> gated(static_cast<size_t>(content_.num_tokens()));
  std::vector<int32_t> pruned(gated.size());
  for (int32_t t = 0; t + 1 < place.num_tokens; ++t) {
    const auto block = static_cast<size_t>(t / b);
    const bool attended = block >= reads.size() || reads[block];
    ++(attended ? gated : pruned)[static_cast<size_t>(content_.TokenAt(place.id, t))];
  }
  std::vector<double> sum(d);
  double denominator = 0.0;
  // Scores here are moderate, so exp() needs no maximum subtracted.
  const auto add = [&](int32_t token, double weight) {
    const float* v = content_.Value(token, head / group());
    for (size_t i = 0; i < d; ++i) sum[i] += weight * v[i];
    denominator += weight;
  };
  const bool has_gate = !options_.relative;
  const bool has_floor = has_gate && options_.uniform_floor;
  for (int32_t token = 0; token < content_.num_tokens(); ++token) {
    const auto at = static_cast<size_t>(token);
    double weight = has_floor ? pruned[at] : 0.0;
    if (gated[at] > 0) {
      const double s = Score(row, head, token);
      const double gate = has_gate ? 1.0 / (1.0 + std::exp(-kGateBeta * (s - threshold))) : 1.0;
      weight += gated[at] * std::exp(s * gate);
    }
    if (weight > 0.0) add(token, weight);
  }
  const int32_t own = content_.TokenAt(place.id, place.num_tokens - 1);
  add(own, std::exp(Score(row, head, own)));
  std::vector<float> out(d);
  for (size_t i = 0; i < d; ++i) out[i] = static_cast<float>(sum[i] / denominator);
  return out;
}

}  // namespace eta::bench
