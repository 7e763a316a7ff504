// Any bytes as a ragged attention step, on the reference and on the CPU backend: the same blocks
// are selected, the same keys counted, and the outputs and their shadows agree within the unit
// tests' tolerance, which is for keys of size 1. Then biases, norms of heads and the rotation of a
// sequence's rows, the same rows in a layer with a window, and a layer's experts.
//
// Shapes, options, rows, forks and thresholds come from the bytes; keys, values and queries are
// normal numbers drawn from a seed of them. Thresholds keep clear of every bound, so that counts
// have one right answer. Relative thresholds need not: near ties may go either way.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/params/experts.h"
#include "kernels/params/layer.h"
#include "kernels/rope_scaling.h"
#include "tests/testing/fuzz/input_reader.h"
#include "tests/testing/kernels/attention_case.h"
#include "tests/testing/kernels/near_ties.h"

namespace {

using eta::fuzz::InputReader;
using eta::fuzz::Require;
using eta::testing::AttentionCase;
using eta::testing::AttentionResult;
using eta::testing::AttentionStep;
using eta::testing::Device;
using eta::testing::SequenceCase;

constexpr int32_t kMaxBlocks = 5;
// Of queries and keys, element by element, in one sequence: wide models get fewer rows, so that no
// input takes long.
constexpr int64_t kMaxProducts = int64_t{1} << 20;

AttentionCase Shapes(InputReader& reader) {
  AttentionCase made;
  made.seed = reader.Raw<uint16_t>();
  eta::KvGeometry& geometry = made.geometry;
  geometry.num_kv_heads = reader.Int(1, 3);
  geometry.head_dim = 16 * reader.Pick({4, 2, 1, 3, 5, 6, 7, 8, 16});
  geometry.block_size = 4 * reader.Pick({1, 2, 4, 8, 5, 16});
  geometry.sub_block = reader.Pick({0, 4});
  geometry.dtype = reader.Pick({eta::DType::kFloat32, eta::DType::kFloat16, eta::DType::kBFloat16});
  made.num_query_heads = geometry.num_kv_heads * reader.Int(1, 8);
  made.gate = reader.Bool() ? eta::Gate::kSilu : eta::Gate::kNone;
  made.beta = reader.Pick({5.0f, 1.0f, 20.0f, 0.001f, 1000.0f});
  return made;
}

// The other index kind, with a metric that one direction rules, and a centre.
void ChooseIndex(InputReader& reader, eta::testing::Random& random, AttentionCase& made) {
  eta::KvGeometry& geometry = made.geometry;
  if (!reader.Bool()) return;
  geometry.index = eta::IndexKind::kOutlier;
  geometry.index_dtype = eta::DType::kInt8;
  const int64_t d = geometry.head_dim;
  if (reader.Bool()) {
    made.index_metric = eta::testing::HostTensor(geometry.num_kv_heads * d, d);
    for (int64_t h = 0; h < geometry.num_kv_heads; ++h) {
      const auto direction = eta::testing::Normal(random, 1, d);
      for (int64_t i = 0; i < d * d; ++i) {
        made.index_metric.row(h * d + i / d)[i % d] =
            direction.data[i / d] * direction.data[i % d] + (i / d == i % d ? 0.5f : 0.0f);
      }
    }
  }
  if (reader.Bool()) made.index_centre = eta::testing::Normal(random, geometry.num_kv_heads, d);
}

// Makes one key of every own block stand out, so that there is no doubt which one does.
void PlantOutliers(const AttentionCase& made, SequenceCase& sequence) {
  const int32_t b = made.geometry.block_size;
  for (int32_t begin = sequence.shared_blocks * b; begin < sequence.num_keys(); begin += b) {
    const int32_t t = begin + (begin / b * 5 + 3) % b;
    if (t >= sequence.num_keys()) continue;
    for (int64_t i = 0; i < sequence.k.cols; ++i) sequence.k.row(t)[i] *= 4.0f;
  }
}

void ChooseExtensions(InputReader& reader, const AttentionCase& made, SequenceCase& sequence) {
  eta::AttentionOptions& options = sequence.attention;
  options.sink_blocks = reader.Pick({0, 0, 1, 2, 7});
  options.shared_reads = reader.Bool();
  for (int words = reader.Pick({0, 0, 1, 3, 6}); words > 0; --words) {
    sequence.tempered.push_back(reader.Raw<uint64_t>());
  }
  const bool outlier = made.geometry.index == eta::IndexKind::kOutlier;
  if (outlier && made.gate == eta::Gate::kNone && reader.Bool()) {
    options.relative = true;
    options.relative_c = static_cast<float>(reader.Int(-60, 20)) / 10.0f;
  }
  options.confirm = reader.Bool();
  // Not read, so that older inputs mean what they meant.
  options.sparse_prefill = (made.seed + made.sequences.size()) % 2 == 0;
}

void AddSequence(InputReader& reader, eta::testing::Random& random, AttentionCase& made) {
  const int32_t b = made.geometry.block_size;
  const int64_t cols = int64_t{made.geometry.num_kv_heads} * made.geometry.head_dim;
  SequenceCase sequence;
  sequence.kind = reader.Byte() % 3 == 0 ? eta::RowKind::kPrefill : eta::RowKind::kDecode;
  const int64_t most_pairs =
      kMaxProducts / (int64_t{made.num_query_heads} * made.geometry.head_dim);
  const auto most_rows = static_cast<int32_t>(std::sqrt(most_pairs));
  sequence.num_rows =
      reader.Int(1, sequence.kind == eta::RowKind::kPrefill ? std::min(b + 5, most_rows) : 3);
  const auto most_keys = static_cast<int32_t>(most_pairs / sequence.num_rows);
  sequence.position = reader.Int(0, std::min(kMaxBlocks * b, most_keys));
  sequence.attention = {.offset = reader.Pick({0.0f, 0.4f, -0.5f}),
                        .z = reader.Pick({1.5f, 0.0f, 1.0f, 2.0f, 8.0f}),
                        .pinned_blocks = reader.Int(0, 3),
                        .rescue_chunk = reader.Pick({128, 1, 2, 5}),
                        .uniform_floor = made.gate == eta::Gate::kSilu && reader.Bool(),
                        .admit_all = reader.Byte() % 8 == 0};
  sequence.calibrate = sequence.kind == eta::RowKind::kPrefill && reader.Bool();
  ChooseExtensions(reader, made, sequence);
  const bool outlier = made.geometry.index == eta::IndexKind::kOutlier;
  // The clearance of bounds is for steps of records of small keys.
  const float scale = outlier ? reader.Pick({0.7f, 0.01f}) : reader.Pick({0.7f, 0.01f, 5.0f});
  sequence.k = eta::testing::Normal(random, sequence.num_keys(), cols, scale);
  sequence.v = eta::testing::Normal(random, sequence.num_keys(), cols);
  for (int32_t t = 0; t < sequence.num_keys(); ++t) {  // keys wander, so that bounds differ
    for (int64_t i = 0; i < cols; ++i) {
      sequence.k.row(t)[i] += 0.8f * std::sin(static_cast<float>(t / b * 7 + i));
    }
  }
  if (!made.sequences.empty() && reader.Bool()) {
    const int32_t index = reader.Int(0, static_cast<int32_t>(made.sequences.size()) - 1);
    const SequenceCase& parent = made.sequences[static_cast<size_t>(index)];
    const int32_t most = std::min(parent.position, sequence.position) / b;
    if (parent.parent < 0 && most > 0) {
      sequence.parent = index;
      sequence.shared_blocks = reader.Int(1, most);
      const int64_t count = int64_t{sequence.shared_blocks} * b * cols;
      std::copy_n(parent.k.row(0), count, sequence.k.row(0));
      std::copy_n(parent.v.row(0), count, sequence.v.row(0));
    }
  }
  if (outlier) PlantOutliers(made, sequence);
  made.sequences.push_back(std::move(sequence));
}

// Bounds of one row's full blocks, for one head.
using RowBounds = std::vector<double>;

bool IsClear(const RowBounds& bounds, double threshold, double clearance,
             const eta::AttentionOptions& options) {
  for (const double bound : bounds) {
    if (std::abs(bound - threshold) <= clearance) return false;
  }
  const auto n = static_cast<int32_t>(bounds.size());
  const int32_t chunk = std::min(options.rescue_chunk, n);
  if (chunk < 2 || options.sink_blocks > 0 || n - options.pinned_blocks < chunk) return true;
  RowBounds first(bounds.begin(), bounds.begin() + chunk);
  std::sort(first.begin(), first.end(), std::greater());
  return first[0] >= threshold || first[0] - first[1] > clearance;
}

// A threshold next to some bound, as far as it is clear of all; else one that admits everything.
float Threshold(InputReader& reader, const std::vector<RowBounds>& rows,
                const eta::AttentionOptions& options, double clearance) {
  double lowest = 0.0;
  for (const RowBounds& row : rows) {
    for (const double bound : row) lowest = std::min(lowest, bound);
  }
  const RowBounds& last = rows.back();
  const double shift = reader.Int(-100, 100) / 40.0;
  const double near = last.empty() ? 0.0 : last[reader.Byte() % last.size()];
  const auto threshold = static_cast<float>(near + shift + options.offset);
  const double effective = static_cast<double>(threshold) - options.offset;
  const bool clear = std::all_of(rows.begin(), rows.end(), [&](const RowBounds& row) {
    return IsClear(row, effective, clearance, options);
  });
  return clear ? threshold : static_cast<float>(lowest - 1.0 + options.offset);
}

void PlaceThresholds(InputReader& reader, AttentionCase& made, AttentionStep& step) {
  const int32_t b = made.geometry.block_size;
  const double clearance = eta::testing::Clearance(made.geometry);
  int64_t first_row = 0;
  for (size_t s = 0; s < made.sequences.size(); ++s) {
    SequenceCase& sequence = made.sequences[s];
    for (int32_t h = 0; h < made.num_query_heads; ++h) {
      std::vector<RowBounds> rows;
      for (int32_t i = 0; i < sequence.num_rows; ++i) {
        RowBounds& row = rows.emplace_back();
        const float* q = made.q.row(first_row + i) + int64_t{h} * made.geometry.head_dim;
        for (int32_t j = 0; j < (sequence.position + i + 1) / b; ++j) {
          row.push_back(Bound(made, step.Record(s, j, h / made.group()), q, sequence.z(h)));
        }
      }
      sequence.thresholds.push_back(Threshold(reader, rows, sequence.attention, clearance));
    }
    first_row += sequence.num_rows;
  }
}

// What scores, and their rounding with them, are larger by than those of keys of size 1.
double KeySize(const AttentionCase& made) {
  double largest = 1.0;
  for (const SequenceCase& sequence : made.sequences) {
    double squares = 0.0;
    for (const float k : sequence.k.data) squares += double{k} * k;
    largest = std::max(largest, std::sqrt(squares / static_cast<double>(sequence.k.data.size())));
  }
  if (made.geometry.index == eta::IndexKind::kOutlier) largest *= 4.0;  // PlantOutliers()
  return largest;
}

// What the gate makes of a score's rounding, beside a gate of the models'.
double Steepness(const AttentionCase& made) {
  return made.gate == eta::Gate::kSilu ? std::max(1.0, made.beta / 5.0) : 1.0;
}

void CheckSame(const AttentionCase& made, AttentionStep& reference, const AttentionResult& got,
               const AttentionResult& want) {
  Require(SelectionDifferences(made, reference, got, want).empty());
  const double tolerance =
      Steepness(made) * KeySize(made) * (made.geometry.dtype == eta::DType::kFloat32 ? 1e-5 : 2e-3);
  Require(ShadowDifferences(made, got, want, tolerance).empty());
  for (int64_t r = 0; r < want.out.rows; ++r) {
    if (!SameSelection(made, r, got, want)) continue;
    for (int32_t h = 0; h < made.num_query_heads; ++h) {
      const int64_t at = int64_t{h} * made.geometry.head_dim;
      Require(eta::testing::RelativeError(got.out.row(r) + at, want.out.row(r) + at,
                                          made.geometry.head_dim) < tolerance);
    }
  }
}

eta::RopeScaling Scaling(InputReader& reader) {
  using Type = eta::RopeScalingType;
  const double begin = reader.Int(0, 255) / 4.0;
  return {
      .type = reader.Pick({Type::kNone, Type::kLinear, Type::kDynamic, Type::kLlama3, Type::kYarn}),
      .factor = 1.0 + reader.Int(0, 4095) / 64.0,
      .low_freq_factor = 1.0,
      .high_freq_factor = 1.0 + reader.Int(1, 255) / 32.0,
      .original_context = reader.Int(1, 1 << 16),
      .ramp_begin = begin,
      .ramp_end = begin + reader.Int(1, 255) / 4.0,
      .attention_factor = reader.Int(1, 255) / 128.0};
}

// The ops between the products and the cache, over one sequence's rows: biases, norms of heads and
// the rotation. The same numbers come out, but for rounding.
void CheckRowOps(InputReader& reader, const AttentionCase& made, Device& reference, Device& cpu) {
  const int32_t d = made.geometry.head_dim;
  const int32_t rows = reader.Int(1, 9);
  const int64_t query_cols = int64_t{made.num_query_heads} * d;
  const int64_t key_cols = int64_t{made.geometry.num_kv_heads} * d;
  const eta::SequenceRows sequence = {.num_rows = rows,
                                      .position = reader.Int(0, 1 << 20),
                                      .rope_theta = reader.Pick({1e4f, 5e5f, 1.0f, 1e12f})};
  const eta::RopeScaling scaling = Scaling(reader);
  const float eps = reader.Pick({1e-6f, 1e-5f, 0.1f});
  eta::testing::Random random(made.seed + 1);
  const float size = reader.Pick({1.0f, 1e-3f, 1e3f});
  const auto qk = eta::testing::Normal(random, rows, query_cols + key_cols, size);
  const auto bias = eta::testing::Normal(random, 1, query_cols + key_cols, size);
  const auto weights = eta::testing::Normal(random, 2, d);
  const std::vector<int32_t> tokens(static_cast<size_t>(rows));
  eta::testing::HostTensor results[2];
  for (Device* on : {&reference, &cpu}) {
    const eta::TensorView all = on->Put(qk, 16);
    const eta::TensorView q = all.Columns(0, query_cols);
    const eta::TensorView k = all.Columns(query_cols, key_cols);
    const float* weight = on->Put(weights.data);
    (*on)->Plan({tokens, {&sequence, 1}});
    (*on)->AddBias({all, on->Put(bias.data)});
    (*on)->NormHeads({q, k, weight, weight + d, d, eps});
    (*on)->Rope({q, k, d, scaling});
    Require((*on)->Finish().ok());
    results[on == &cpu] = on->Get(all);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t head = 0; head < query_cols + key_cols; head += d) {
      Require(eta::testing::RelativeError(results[1].row(r) + head, results[0].row(r) + head, d) <
              1e-5);
    }
  }
}

// A layer's experts: the same choice to the last place, and nearly the same sums.
void CheckExperts(InputReader& reader, uint64_t seed, Device& reference, Device& cpu) {
  using eta::testing::HostTensor;
  using eta::testing::Normal;
  const int32_t experts = reader.Int(1, 40);
  const int32_t per_row = reader.Int(1, std::min(experts, 8));
  const int32_t rows = reader.Int(1, 20);
  const int32_t dim = reader.Int(1, 80);
  const int32_t width = reader.Int(1, 40);
  const auto dtype =
      reader.Pick({eta::DType::kFloat32, eta::DType::kFloat16, eta::DType::kBFloat16});
  const bool normalise = reader.Bool();
  eta::testing::Random random(seed + 2);
  HostTensor logits = Normal(random, rows, experts, reader.Pick({1.0f, 0.0f, 30.0f}));
  for (int n = reader.Pick({0, 0, 2}); n > 0; --n) {
    logits.data[reader.Raw<uint16_t>() % logits.data.size()] = reader.Pick(
        {std::numeric_limits<float>::quiet_NaN(), -0.0f, std::numeric_limits<float>::infinity()});
  }
  const HostTensor x = Normal(random, rows, dim);
  const HostTensor onto = Normal(random, rows, dim);
  std::vector<HostTensor> up;
  std::vector<HostTensor> down;
  for (int32_t e = 0; e < experts; ++e) {
    up.push_back(Normal(random, 2 * width, dim, 1.0f / std::sqrt(static_cast<float>(dim))));
    down.push_back(Normal(random, dim, width, 1.0f / std::sqrt(static_cast<float>(width))));
  }
  const std::vector<int32_t> tokens(static_cast<size_t>(rows));
  const eta::SequenceRows sequence = {.num_rows = rows};
  const auto places = static_cast<size_t>(rows * per_row);
  HostTensor sums[2];
  std::vector<int32_t> chosen[2];
  for (Device* on : {&reference, &cpu}) {
    const auto stack = [&](const std::vector<HostTensor>& weights) {
      std::vector<std::unique_ptr<eta::Matrix>> matrices;
      for (const HostTensor& weight : weights) {
        std::vector<std::byte> storage;
        const eta::HostMatrix host = ToHostMatrix(weight, dtype, storage);
        matrices.push_back(*(*on)->Pack({&host, 1}, eta::WeightFormat::kNative));
      }
      return *(*on)->experts().Stack(std::move(matrices));
    };
    const auto gate_up = stack(up);
    const auto back = stack(down);
    const auto integers = [&](size_t count) { return on->Put(std::vector<int32_t>(count)); };
    const eta::ExpertChoice choice = {.num_experts = experts,
                                      .per_row = per_row,
                                      .experts = integers(places),
                                      .weights = on->Put(std::vector<float>(places)),
                                      .places = integers(places),
                                      .rows = integers(places),
                                      .place_end = integers(static_cast<size_t>(experts))};
    const auto count = static_cast<int64_t>(places);
    const eta::TensorView wide = on->Empty(count, 2 * width);
    const eta::TensorView activated = on->Empty(count, width);
    const eta::TensorView narrow = on->Empty(count, dim);
    const eta::TensorView out = on->Put(onto);
    std::vector<int32_t> rows_of_experts(static_cast<size_t>(experts));
    (*on)->Plan({tokens, {&sequence, 1}});
    eta::ExpertOps& ops = (*on)->experts();
    ops.RouteRows({on->Put(logits), normalise, choice, rows_of_experts.data()});
    ops.MultiplyExperts({on->Put(x), true, choice, gate_up.get(), wide});
    (*on)->SwiGlu({wide, activated});
    ops.MultiplyExperts({activated, false, choice, back.get(), narrow});
    ops.AddExperts({narrow, choice, out});
    Require((*on)->Finish().ok());
    const bool is_cpu = on == &cpu;
    sums[is_cpu] = on->Get(out);
    for (const int32_t* part : {choice.experts, choice.places, choice.rows}) {
      const std::vector<int32_t> values = on->Get(part, places);
      chosen[is_cpu].insert(chosen[is_cpu].end(), values.begin(), values.end());
    }
    chosen[is_cpu].insert(chosen[is_cpu].end(), rows_of_experts.begin(), rows_of_experts.end());
  }
  Require(chosen[0] == chosen[1]);
  for (int32_t r = 0; r < rows; ++r) {
    const bool spoilt = std::isnan(sums[0].row(r)[0]);
    Require(spoilt == std::isnan(sums[1].row(r)[0]));
    if (spoilt) continue;
    Require(eta::testing::RelativeError(sums[1].row(r), sums[0].row(r), dim) < 1e-4);
  }
}

// The rows in a layer with a window, which has a block table of its own: any window, shorter than a
// block or longer than the context.
void CheckWindow(InputReader& reader, AttentionCase& made, Device& reference, Device& cpu) {
  made.window =
      reader.Bool() ? reader.Int(1, 3 * made.geometry.block_size) : reader.Int(1, 1 << 30);
  made.table = reader.Int(0, 2);
  const AttentionResult want = AttentionStep(reference, made).Run();
  const AttentionResult got = AttentionStep(cpu, made).Run();
  const double tolerance =
      KeySize(made) * (made.geometry.dtype == eta::DType::kFloat32 ? 1e-5 : 2e-3);
  for (int64_t r = 0; r < want.out.rows; ++r) {
    for (int64_t at = 0; at < want.out.cols; at += made.geometry.head_dim) {
      Require(eta::testing::RelativeError(got.out.row(r) + at, want.out.row(r) + at,
                                          made.geometry.head_dim) < tolerance);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  InputReader reader(data, size);
  AttentionCase made = Shapes(reader);
  eta::testing::Random random(made.seed);
  ChooseIndex(reader, random, made);
  // Not read, as above.
  if (made.seed % 3 == 0) eta::testing::AddSinks(made.seed, made);
  made.table = static_cast<int32_t>(made.seed % 2);
  int64_t rows = 0;
  for (int n = reader.Int(1, 4); n > 0; --n) {
    AddSequence(reader, random, made);
    rows += made.sequences.back().num_rows;
  }
  made.q =
      eta::testing::Normal(random, rows, int64_t{made.num_query_heads} * made.geometry.head_dim);
  Device reference({"reference"});
  AttentionStep wanted(reference, made);
  PlaceThresholds(reader, made, wanted);
  const AttentionResult want = wanted.Run();
  const int threads = reader.Int(1, 4);  // from 3 on: 1 or 2 with AMX
  eta::testing::BackendUnderTest with_amx{.name = "cpu", .amx = threads > 2};
  with_amx.amx = with_amx.amx && eta::testing::WhyMissing(with_amx).empty();
  Device cpu(with_amx, (threads - 1) % 2 + 1);
  const AttentionResult got = AttentionStep(cpu, made).Run();
  CheckSame(made, wanted, got, want);
  CheckRowOps(reader, made, reference, cpu);
  CheckExperts(reader, made.seed, reference, cpu);
  CheckWindow(reader, made, reference, cpu);
  return 0;
}
