#include "tests/testing/kernels/judged_case.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace eta::testing {
namespace {

constexpr int32_t kMaxKeys = 4096;
// The most that a case may cost the reference: products of a query and a key, elements of keys.
constexpr double kMaxProducts = 32e6;
constexpr double kMaxElements = 4e6;

// Fills in normal values cheaply: from one long tape whose length is no multiple of any row.
void Fill(Random& random, std::span<float> to, float deviation) {
  static const std::vector<float>& tape = []() -> std::vector<float>& {
    Random tape_random(1);
    return (new HostTensor(Normal(tape_random, 1, 65521)))->data;
  }();
  auto at = static_cast<size_t>(Uniform(random, 0, static_cast<int64_t>(tape.size()) - 1));
  for (float& x : to) {
    x = deviation * tape[at];
    if (++at == tape.size()) at = 0;
  }
}

// Makes keys that wander from block to block, so that bounds differ.
void FillKeys(Random& random, HostTensor& keys, int32_t from, int32_t block_size) {
  Fill(random, std::span(keys.data).subspan(static_cast<size_t>(from * keys.cols)), 0.7f);
  std::vector<float> drift(static_cast<size_t>(keys.cols));
  for (int64_t t = from; t < keys.rows; ++t) {
    if (t == from || t % block_size == 0) Fill(random, drift, 0.8f);
    for (size_t i = 0; i < drift.size(); ++i) keys.row(t)[i] += drift[i];
  }
}

void ChooseGeometry(Random& random, NarrowTypes narrow, AttentionCase& made) {
  KvGeometry& geometry = made.geometry;
  geometry.num_kv_heads = static_cast<int32_t>(Uniform(random, 1, 4));
  geometry.head_dim = Pick(random, {64, 64, 64, 64, 96, 96, 128, 128, 128, 16, 32, 80, 112, 256});
  geometry.block_size = Pick(random, {16, 16, 32, 32, 64, 64, 64, 128, 128, 20, 48, 100});
  geometry.sub_block = Pick(random, {4, 4, 4, 0});
  geometry.dtype = Pick(random, {DType::kFloat16, DType::kBFloat16});
  if (narrow.index) geometry.index_dtype = DType::kInt8;
  if (narrow.cache) {
    geometry.dtype = DType::kFloat8E4M3;
    geometry.head_dim = Pick(random, {64, 64, 96, 128});
    geometry.block_size = Pick(random, {16, 32, 64, 64, 128});
  }
  made.num_query_heads = geometry.num_kv_heads *
                         static_cast<int32_t>(Pick(random, {1, 2, 3, 4, 4, 5, 7, 8, 8, 13, 16}));
  if (narrow.wide_heads) {
    geometry.num_kv_heads = static_cast<int32_t>(Uniform(random, 1, 2));
    geometry.head_dim = 256;
    geometry.block_size = Pick(random, {16, 32, 64, 64, 128});
    made.num_query_heads = geometry.num_kv_heads * Pick(random, {1, 2, 2, 3, 4, 4, 5, 7, 8});
  }
  made.gate = Often(random, 5) ? Gate::kNone : Gate::kSilu;
  made.beta = Pick(random, {1.0f, 5.0f, 20.0f});
}

AttentionOptions RandomOptions(Random& random, Gate gate) {
  return {.offset = Pick(random, {0.0f, 0.0f, 0.4f, -0.5f}),
          .z = Pick(random, {0.0f, 1.0f, 1.5f, 1.5f, 2.0f, 8.0f}),
          .pinned_blocks = static_cast<int32_t>(Uniform(random, 0, 3)),
          .rescue_chunk = Pick(random, {1, 2, 5, 64, 128, 128}),
          .uniform_floor = gate == Gate::kSilu && Often(random, 2),
          .admit_all = Often(random, 8)};
}

// About `keys` keys: often around a block's end, sometimes few.
int32_t RandomKeys(Random& random, double keys, int32_t block_size) {
  auto count = static_cast<int64_t>(keys);
  if (Often(random, 4)) count = count / block_size * block_size + Uniform(random, -1, 1);
  if (Often(random, 10)) count = Uniform(random, 1, block_size);
  return static_cast<int32_t>(std::clamp<int64_t>(count, 1, kMaxKeys));
}

// Makes a sequence begin with blocks of an earlier one, if that has any.
void Fork(Random& random, const AttentionCase& made, SequenceCase& child) {
  const auto index = Uniform(random, 0, static_cast<int64_t>(made.sequences.size()) - 1);
  const SequenceCase& parent = made.sequences[static_cast<size_t>(index)];
  const int32_t b = made.geometry.block_size;
  const int32_t most = std::min(parent.position, child.position) / b;
  if (parent.parent >= 0 || most == 0) return;
  child.parent = static_cast<int32_t>(index);
  child.shared_blocks = static_cast<int32_t>(Uniform(random, 1, most));
}

void AddSequence(Random& random, AttentionCase& made, bool prefill, double keys) {
  const int32_t b = made.geometry.block_size;
  const int64_t cols = int64_t{made.geometry.num_kv_heads} * made.geometry.head_dim;
  SequenceCase sequence;
  const int32_t num_keys = RandomKeys(random, keys, b);
  if (prefill) {
    sequence.kind = RowKind::kPrefill;
    const double row_cost =
        static_cast<double>(num_keys) * made.num_query_heads * cols / made.geometry.num_kv_heads;
    const auto most = static_cast<int64_t>(kMaxProducts / 16 / row_cost);
    sequence.num_rows = static_cast<int32_t>(Uniform(random, 1, std::clamp<int64_t>(most, 1, 300)));
  } else {
    sequence.num_rows = Often(random, 6) ? static_cast<int32_t>(Uniform(random, 2, 3)) : 1;
  }
  sequence.num_rows = std::min(sequence.num_rows, num_keys);
  sequence.position = num_keys - sequence.num_rows;
  sequence.attention = RandomOptions(random, made.gate);
  if (!made.sequences.empty() && Often(random, 3)) Fork(random, made, sequence);

  sequence.k = HostTensor(num_keys, cols);
  sequence.v = HostTensor(num_keys, cols);
  const int32_t shared = sequence.shared_blocks * b;
  if (shared > 0) {
    const SequenceCase& parent = made.sequences[static_cast<size_t>(sequence.parent)];
    std::copy_n(parent.k.row(0), shared * cols, sequence.k.row(0));
    std::copy_n(parent.v.row(0), shared * cols, sequence.v.row(0));
  }
  FillKeys(random, sequence.k, shared, b);
  Fill(random, std::span(sequence.v.data).subspan(static_cast<size_t>(shared * cols)), 1.0f);
  made.sequences.push_back(std::move(sequence));
}

AttentionCase WithoutThresholds(Random& random, uint64_t seed, NarrowTypes narrow) {
  AttentionCase made;
  made.seed = seed;
  ChooseGeometry(random, narrow, made);
  const auto count = static_cast<size_t>(std::lround(std::exp2(UniformReal(random, 0.0, 6.0))));
  const double width = made.geometry.head_dim;
  const double all_keys = std::min(kMaxProducts / (width * made.num_query_heads),
                                   kMaxElements / (width * made.geometry.num_kv_heads));
  std::vector<double> shares;
  double sum = 0.0;
  for (size_t s = 0; s < count; ++s) {
    shares.push_back(-std::log(UniformReal(random, 1e-3, 1.0)));
    sum += shares.back();
  }
  const bool decode_only = Often(random, 2);
  int64_t num_rows = 0;
  for (const double share : shares) {
    AddSequence(random, made, !decode_only && Often(random, 4), all_keys * share / sum);
    num_rows += made.sequences.back().num_rows;
  }
  const int64_t q_cols = int64_t{made.num_query_heads} * made.geometry.head_dim;
  made.q = HostTensor(num_rows, q_cols);
  Fill(random, made.q.data, 1.0f);
  made.predictor_weight = HostTensor(made.num_query_heads, q_cols);
  Fill(random, made.predictor_weight.data, 0.3f / std::sqrt(static_cast<float>(q_cols)));
  for (int32_t h = 0; h < made.num_query_heads; ++h) {
    made.predictor_bias.push_back(static_cast<float>(UniformReal(random, 0.0, 3.0)));
  }
  return made;
}

// Gives the heads of some decoding sequences a z of their own, and collects cells over some
// prompts.
void Calibrate(uint64_t seed, AttentionCase& made) {
  Random random(seed + 0x5ca1e);  // another stream, so that the rest of the case does not change
  for (SequenceCase& sequence : made.sequences) {
    const bool chosen = Often(random, 3);
    if (sequence.kind == RowKind::kPrefill) {
      sequence.calibrate = chosen;
    } else if (chosen) {
      for (int32_t h = 0; h < made.num_query_heads; ++h) {
        sequence.head_z.push_back(static_cast<float>(Uniform(random, 0, 640)) / kZStepsPerUnit);
      }
    }
  }
}

// Bounds of the full blocks before one decode row, for one head.
struct RowBounds {
  int64_t row;
  std::vector<double> bounds;
};

// True if float32 rounding cannot change what the head admits: no bound is near the threshold, and
// a rescued block is clearly the best.
bool IsClear(const std::vector<double>& bounds, double threshold, double clearance,
             const AttentionOptions& options) {
  const auto near = [&](double bound) { return std::abs(bound - threshold) <= clearance; };
  if (std::ranges::any_of(bounds, near)) return false;
  const auto n = static_cast<int32_t>(bounds.size());
  const int32_t chunk = std::min(options.rescue_chunk, n);
  if (options.sink_blocks > 0 || n - options.pinned_blocks < chunk) return true;
  std::vector<double> first(bounds.begin(), bounds.begin() + chunk);
  std::ranges::sort(first, std::greater());
  return chunk < 2 || first[0] >= threshold || first[0] - first[1] > clearance;
}

// Chooses the thresholds of one sequence; if they are predicted, an offset that makes them clear.
class Placement {
 public:
  Placement(AttentionCase& made, AttentionStep& step, size_t s, int64_t first_row)
      : made_(made), sequence_(made.sequences[s]), clearance_(Clearance(made.geometry)) {
    const KvGeometry& geometry = made.geometry;
    const int32_t full = sequence_.num_keys() / geometry.block_size;
    std::vector<std::vector<BlockRecord>> records(static_cast<size_t>(geometry.num_kv_heads));
    for (int32_t kv_head = 0; kv_head < geometry.num_kv_heads; ++kv_head) {
      for (int32_t j = 0; j < full; ++j) {
        records[static_cast<size_t>(kv_head)].push_back(step.Record(s, j, kv_head));
      }
    }
    bounds_.resize(static_cast<size_t>(made.num_query_heads));
    for (int32_t h = 0; h < made.num_query_heads; ++h) {
      for (int32_t i = 0; i < sequence_.num_rows; ++i) {
        RowBounds row = {first_row + i, {}};
        const float* q = made.q.row(row.row) + int64_t{h} * geometry.head_dim;
        const auto n = static_cast<size_t>((sequence_.position + i + 1) / geometry.block_size);
        for (size_t j = 0; j < n; ++j) {
          row.bounds.push_back(
              Bound(made, records[static_cast<size_t>(h / made.group())][j], q, sequence_.z(h)));
        }
        bounds_[static_cast<size_t>(h)].push_back(std::move(row));
      }
    }
  }

  // True if some offset near the wanted one makes the predictor's thresholds clear of all bounds.
  bool Predict(Random& random) {
    const float wanted = sequence_.attention.offset;
    for (int attempt = 0; attempt < 40; ++attempt) {
      if (PredictedAreClear()) return true;
      sequence_.attention.offset = wanted + static_cast<float>(UniformReal(random, -0.3, 0.3));
    }
    sequence_.attention.offset = wanted;
    return false;
  }

  void Freeze(Random& random) {
    for (const std::vector<RowBounds>& rows : bounds_) {
      sequence_.thresholds.push_back(FrozenThreshold(random, rows));
    }
  }

 private:
  bool PredictedAreClear() const {
    for (size_t h = 0; h < bounds_.size(); ++h) {
      const float* weight = made_.predictor_weight.row(static_cast<int64_t>(h));
      for (const RowBounds& row : bounds_[h]) {
        double tau = made_.predictor_bias[h];
        for (int64_t i = 0; i < made_.q.cols; ++i) {
          tau += static_cast<double>(weight[i]) * made_.q.row(row.row)[i];
        }
        if (!IsClear(row.bounds, tau - sequence_.attention.offset, clearance_,
                     sequence_.attention)) {
          return false;
        }
      }
    }
    return true;
  }

  float FrozenThreshold(Random& random, const std::vector<RowBounds>& rows) const {
    const AttentionOptions& options = sequence_.attention;
    const std::vector<double>& last = rows.back().bounds;
    if (last.empty()) return static_cast<float>(UniformReal(random, -2.0, 2.0));
    for (int attempt = 0; attempt < 200; ++attempt) {
      const auto pick =
          static_cast<size_t>(Uniform(random, 0, static_cast<int64_t>(last.size()) - 1));
      const double shift = Often(random, 6) ? 3.0 : UniformReal(random, -0.5, 0.5);
      const auto threshold = static_cast<float>(last[pick] + shift + options.offset);
      const double effective = static_cast<double>(threshold) - options.offset;
      if (std::ranges::all_of(rows, [&](const RowBounds& row) {
            return IsClear(row.bounds, effective, clearance_, options);
          })) {
        return threshold;
      }
    }
    double lowest = 0.0;
    for (const RowBounds& row : rows) {
      for (const double bound : row.bounds) lowest = std::min(lowest, bound);
    }
    return static_cast<float>(lowest - 1.0 + options.offset);  // admits all
  }

  AttentionCase& made_;
  SequenceCase& sequence_;
  double clearance_;
  std::vector<std::vector<RowBounds>> bounds_;  // [HQ][rows]
};

}  // namespace

JudgedCase MakeJudgedCase(uint64_t seed, NarrowTypes narrow) {
  Random random(seed);
  JudgedCase judged;
  judged.attention_case = std::make_unique<AttentionCase>(WithoutThresholds(random, seed, narrow));
  AttentionCase& made = *judged.attention_case;
  Calibrate(seed, made);
  AddExtensions(seed, narrow.outlier, made);
  judged.device = std::make_shared<Device>(BackendUnderTest{"reference"});
  judged.reference = std::make_shared<AttentionStep>(*judged.device, made);
  AttentionStep& step = *judged.reference;
  int64_t first_row = 0;
  for (size_t s = 0; s < made.sequences.size(); ++s) {
    SequenceCase& sequence = made.sequences[s];
    const bool predicted = Often(random, 2);
    const bool selects =
        sequence.selects() && !sequence.attention.admit_all && !sequence.attention.relative;
    if (selects) {
      Placement placement(made, step, s, first_row);
      if (!predicted || !placement.Predict(random)) placement.Freeze(random);
    } else if (!predicted) {
      for (int32_t h = 0; h < made.num_query_heads; ++h) {
        sequence.thresholds.push_back(static_cast<float>(UniformReal(random, -1.0, 3.0)));
      }
    }
    first_row += sequence.num_rows;
  }
  judged.want = step.Run();
  return judged;
}

}  // namespace eta::testing
