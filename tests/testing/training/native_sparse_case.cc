#include "tests/testing/training/native_sparse_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace eta::training::testing {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

int32_t PickDim(Numbers& numbers, const std::vector<int32_t>& head_dims) {
  return head_dims[static_cast<size_t>(
      numbers.Integer(0, static_cast<int32_t>(head_dims.size()) - 1))];
}

int32_t RaggedLength(Numbers& numbers, int32_t longest) {
  switch (numbers.Integer(0, 3)) {
    case 0:
      return numbers.Integer(1, std::min(longest, kCompressedWindow));
    case 1:
      return numbers.Integer(longest - longest / 4, longest);
    default:
      return numbers.Integer(1, std::min(longest, 200));
  }
}

// A weight of each window that query t of head h sees.
std::vector<double> WindowWeights(const CompressedCase& c, DType rounding, int32_t b, int32_t h,
                                  int32_t t) {
  const AttentionShape& s = c.shape;
  const auto rounded = [&](double x) {
    return rounding == DType::kFloat64 ? x : RoundTo(rounding, static_cast<float>(x));
  };
  std::vector<double> weights;
  for (int32_t i = 0; i < CompressedCountAt(t); ++i) {
    const int64_t row = (int64_t{b} * s.length + t) * s.num_query_heads + h;
    const int64_t key =
        (int64_t{b} * CompressedCount(s.length) + i) * s.num_kv_heads + h / s.group();
    double dot = 0.0;
    for (int32_t e = 0; e < s.head_dim; ++e) {
      dot += rounded(c.q[static_cast<size_t>(row * s.head_dim + e)]) *
             rounded(c.k[static_cast<size_t>(key * s.head_dim + e)]);
    }
    weights.push_back(s.scale * dot);
  }
  if (weights.empty()) return weights;
  const double largest = *std::max_element(weights.begin(), weights.end());
  double total = 0.0;
  for (double& weight : weights) total += weight = std::exp(weight - largest);
  for (double& weight : weights) weight /= total;
  return weights;
}

// Of every block to query t of KV head g's heads.
std::vector<double> Importances(const CompressedCase& c, DType rounding, int32_t b, int32_t g,
                                int32_t t) {
  std::vector<double> importances(static_cast<size_t>(KeySelection::Blocks(c.shape.length)), 0.0);
  for (int32_t h = g * c.shape.group(); h < (g + 1) * c.shape.group(); ++h) {
    const std::vector<double> weights = WindowWeights(c, rounding, b, h, t);
    for (size_t i = 0; i < weights.size(); ++i) {
      constexpr size_t kStrides = kRegulariserBlock / kCompressedStride;
      importances[i / kStrides] += weights[i];
      importances[(i + 1) / kStrides] += weights[i];
    }
  }
  return importances;
}

double RowChoiceError(const std::vector<bool>& chosen, size_t own,
                      const std::vector<double>& importances) {
  const auto count = static_cast<size_t>(std::count(chosen.begin(), chosen.end(), true));
  if (count != std::min<size_t>(own + 1, kSelectedBlocks)) return kInfinite;
  if (!chosen[own] || !chosen[0] || !chosen[own - std::min<size_t>(own, 1)]) return kInfinite;
  if (std::find(chosen.begin() + static_cast<std::ptrdiff_t>(own) + 1, chosen.end(), true) !=
      chosen.end()) {
    return kInfinite;
  }
  double least_taken = kInfinite;
  double most_left = 0.0;
  for (size_t j = 1; j + 1 < own; ++j) {
    if (chosen[j]) {
      least_taken = std::min(least_taken, importances[j]);
    } else {
      most_left = std::max(most_left, importances[j]);
    }
  }
  return std::max(0.0, most_left - least_taken);
}

}  // namespace

std::vector<uint64_t> RandomBlocks(Numbers& numbers, const AttentionShape& shape) {
  const int32_t n = KeySelection::Blocks(shape.length);
  std::vector<uint64_t> blocks;
  for (int32_t head = 0; head < shape.sequences * shape.num_kv_heads; ++head) {
    for (int32_t j = 0; j < n; ++j) {
      for (int32_t c = 0; c < n; ++c) {
        const int32_t kind = j == c ? 0 : numbers.Integer(0, 3);
        uint64_t bits = kind == 0 ? ~uint64_t{0} : 0;
        for (int32_t i = 0; i < kRegulariserBlock && kind > 1; ++i) {
          bits |= static_cast<uint64_t>(numbers.Integer(0, 1)) << i;
        }
        blocks.push_back(bits);
      }
    }
  }
  return blocks;
}

std::string CompressedCase::Describe() const {
  return "B " + std::to_string(shape.sequences) + ", T " + std::to_string(shape.length) + ", HQ " +
         std::to_string(shape.num_query_heads) + ", HKV " + std::to_string(shape.num_kv_heads) +
         ", d " + std::to_string(shape.head_dim);
}

CompressedCase MakeCompressedCase(Numbers& numbers, AttentionShape shape) {
  CompressedCase c;
  c.shape = shape;
  c.shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  const int64_t q_count = shape.rows() * shape.num_query_heads * shape.head_dim;
  const int64_t k_count = int64_t{shape.sequences} * CompressedCount(shape.length) *
                          shape.num_kv_heads * shape.head_dim;
  c.q = numbers.Normal(q_count, numbers.Uniform(0.5, 2.0));
  c.k = numbers.Normal(k_count);
  c.v = numbers.Normal(k_count);
  c.grad_out = numbers.Normal(q_count);
  return c;
}

CompressedCase RandomCompressedCase(uint64_t seed, const std::vector<int32_t>& head_dims,
                                    int32_t longest) {
  Numbers numbers(seed);
  AttentionShape shape;
  shape.sequences = numbers.Integer(1, 2);
  shape.length = RaggedLength(numbers, longest);
  shape.num_kv_heads = numbers.Integer(1, 2);
  shape.num_query_heads = shape.num_kv_heads * numbers.Integer(1, 4);
  shape.head_dim = PickDim(numbers, head_dims);
  return MakeCompressedCase(numbers, shape);
}

Results RunCompressedAttention(const CompressedCase& c, Harness& harness, bool backward,
                               std::vector<uint64_t>* selected) {
  const AttentionShape& s = c.shape;
  const int64_t rows = s.rows();
  const int64_t keys = int64_t{s.sequences} * CompressedCount(s.length);
  const int64_t q_cols = int64_t{s.num_query_heads} * s.head_dim;
  const int64_t kv_cols = int64_t{s.num_kv_heads} * s.head_dim;
  const int64_t blocks = KeySelection::Blocks(s.length);
  // Bits that an op does not write show as blocks that no query has.
  const std::vector<uint64_t> unwritten(
      static_cast<size_t>(s.sequences * s.num_kv_heads * blocks * blocks), ~uint64_t{0});
  CompressedAttentionParams forward{};
  forward.shape = s;
  forward.q = harness.Activations(c.q, rows, q_cols);
  forward.k = harness.Activations(c.k, keys, kv_cols);
  forward.v = harness.Activations(c.v, keys, kv_cols);
  forward.out = harness.Activations(rows, q_cols);
  forward.lse = harness.Floats(rows * s.num_query_heads);
  forward.selected = harness.Words(unwritten);
  harness.backend().CompressedAttention(forward);
  std::vector<double> lse = harness.Read(forward.lse, rows * s.num_query_heads);
  for (size_t i = 0; i < lse.size(); ++i) {
    const auto t = static_cast<int32_t>(i % static_cast<size_t>(s.length));
    if (CompressedCountAt(t) == 0 && lse[i] == -kInfinite) lse[i] = 0.0;
  }
  Results results = {{"out", harness.Read(forward.out)}, {"lse", lse}};
  if (selected != nullptr) {
    *selected = harness.Read(forward.selected, static_cast<int64_t>(unwritten.size()));
  }
  if (!backward) return results;
  CompressedAttentionBackwardParams params{};
  params.forward = forward;
  params.grad_out = harness.Activations(c.grad_out, rows, q_cols);
  params.grad_q = harness.Activations(rows, q_cols);
  params.grad_k = harness.Activations(keys, kv_cols);
  params.grad_v = harness.Activations(keys, kv_cols);
  harness.backend().CompressedAttentionBackward(params);
  results.push_back({"dq", harness.Read(params.grad_q)});
  results.push_back({"dk", harness.Read(params.grad_k)});
  results.push_back({"dv", harness.Read(params.grad_v)});
  return results;
}

double ChoiceError(const CompressedCase& c, const std::vector<uint64_t>& selected, DType rounding) {
  const AttentionShape& s = c.shape;
  const int32_t n = KeySelection::Blocks(s.length);
  if (selected.size() != static_cast<size_t>(s.sequences * s.num_kv_heads * n * n))
    return kInfinite;
  double error = 0.0;
  for (int32_t b = 0; b < s.sequences; ++b) {
    for (int32_t g = 0; g < s.num_kv_heads; ++g) {
      for (int32_t t = 0; t < s.length; ++t) {
        const int32_t own = t / kRegulariserBlock;
        std::vector<bool> chosen;
        for (int32_t j = 0; j < n; ++j) {
          const auto at = static_cast<size_t>(((b * s.num_kv_heads + g) * n + j) * n + own);
          chosen.push_back((selected[at] >> (t % kRegulariserBlock) & 1) != 0);
        }
        error = std::max(error, RowChoiceError(chosen, static_cast<size_t>(own),
                                               Importances(c, rounding, b, g, t)));
      }
    }
  }
  return error;
}

WindowsCase RandomWindowsCase(uint64_t seed, const std::vector<int32_t>& head_dims,
                              int32_t longest) {
  Numbers numbers(seed);
  WindowsCase c;
  c.sequences = numbers.Integer(1, 3);
  c.length = RaggedLength(numbers, longest);
  c.heads = numbers.Integer(1, 3);
  c.head_dim = PickDim(numbers, head_dims);
  c.x = numbers.Normal(int64_t{c.sequences} * c.length * c.heads * c.head_dim);
  c.grad_out = numbers.Normal(int64_t{c.sequences} * CompressedCount(c.length) * c.heads *
                              kCompressedWindow * c.head_dim);
  return c;
}

Results RunGatherWindows(const WindowsCase& c, Harness& harness, bool backward) {
  const int64_t rows = int64_t{c.sequences} * c.length;
  const int64_t cols = int64_t{c.heads} * c.head_dim;
  const int64_t windows = int64_t{c.sequences} * CompressedCount(c.length) * c.heads;
  const int64_t wide = int64_t{kCompressedWindow} * c.head_dim;
  GatherWindowsParams forward{};
  forward.sequences = c.sequences;
  forward.length = c.length;
  forward.head_dim = c.head_dim;
  forward.x = harness.Activations(c.x, rows, cols);
  forward.out = harness.Activations(windows, wide);
  harness.backend().GatherWindows(forward);
  Results results = {{"out", harness.Read(forward.out)}};
  if (!backward) return results;
  GatherWindowsBackwardParams params{};
  params.forward = forward;
  params.grad_out = harness.Activations(c.grad_out, windows, wide);
  params.grad_x = harness.Activations(rows, cols);
  harness.backend().GatherWindowsBackward(params);
  results.push_back({"dx", harness.Read(params.grad_x)});
  return results;
}

BranchesCase RandomBranchesCase(uint64_t seed, const std::vector<int32_t>& head_dims,
                                int32_t most_rows) {
  Numbers numbers(seed);
  BranchesCase c;
  c.rows = numbers.Integer(1, most_rows);
  c.heads = numbers.Integer(1, 6);
  c.head_dim = PickDim(numbers, head_dims);
  c.gates = numbers.Normal(c.rows * kBranches * c.heads, 2.0);
  for (std::vector<double>& branch : c.branches) {
    branch = numbers.Normal(c.rows * c.heads * c.head_dim);
  }
  c.grad_out = numbers.Normal(c.rows * c.heads * c.head_dim);
  return c;
}

Results RunMixBranches(const BranchesCase& c, Harness& harness, bool backward) {
  const int64_t cols = int64_t{c.heads} * c.head_dim;
  const int64_t gates = int64_t{kBranches} * c.heads;
  MixBranchesParams forward{};
  forward.num_heads = c.heads;
  forward.gates = harness.Activations(c.gates, c.rows, gates);
  for (size_t i = 0; i < kBranches; ++i) {
    forward.branches[i] = harness.Activations(c.branches[i], c.rows, cols);
  }
  forward.out = harness.Activations(c.rows, cols);
  harness.backend().MixBranches(forward);
  Results results = {{"out", harness.Read(forward.out)}};
  if (!backward) return results;
  MixBranchesBackwardParams params{};
  params.forward = forward;
  params.grad_out = harness.Activations(c.grad_out, c.rows, cols);
  const auto add = [&](const std::string& where) {
    harness.backend().MixBranchesBackward(params);
    results.push_back({"dgates" + where, harness.Read(params.grad_gates)});
    for (size_t i = 0; i < kBranches; ++i) {
      results.push_back(
          {"dbranch " + std::to_string(i) + where, harness.Read(params.grad_branches[i])});
    }
  };
  params.grad_gates = harness.Activations(c.rows, gates);
  for (Tensor& branch : params.grad_branches) branch = harness.Activations(c.rows, cols);
  add("");
  params.grad_gates = forward.gates;
  params.grad_branches = forward.branches;
  add(" in place");
  return results;
}

}  // namespace eta::training::testing
