#include "tests/testing/training/attention_case.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>

#include "tests/testing/training/native_sparse_case.h"

namespace eta::training::testing {

std::string AttentionCase::Describe() const {
  std::ostringstream text;
  text << "B " << shape.sequences << ", T " << shape.length << ", HQ " << shape.num_query_heads
       << ", HKV " << shape.num_kv_heads << ", d " << shape.head_dim << ", gate "
       << static_cast<int>(gate.kind) << ", beta " << gate.beta << ", strength " << gate.strength
       << (gate.group_blocks ? ", blocks of groups" : ", blocks of heads")
       << (blocks.empty() ? "" : ", blocks chosen") << ", window " << window;
  return text.str();
}

AttentionCase RandomAttentionCase(uint64_t seed, const std::vector<int32_t>& head_dims,
                                  int32_t longest) {
  Numbers numbers(seed);
  AttentionCase c;
  c.shape.sequences = numbers.Integer(1, 2);
  c.shape.length = numbers.Integer(0, 3) == 0 ? numbers.Integer(1, longest)
                                              : numbers.Integer(1, std::min(longest, 90));
  c.shape.num_kv_heads = numbers.Integer(1, 3);
  c.shape.num_query_heads = c.shape.num_kv_heads * numbers.Integer(1, 4);
  c.shape.head_dim = head_dims[static_cast<size_t>(
      numbers.Integer(0, static_cast<int32_t>(head_dims.size()) - 1))];
  c.shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.shape.head_dim)));
  constexpr GateKind kKinds[] = {GateKind::kNone, GateKind::kSilu, GateKind::kSilu,
                                 GateKind::kAdditive};
  c.gate.kind = kKinds[numbers.Integer(0, 3)];
  c.gate.beta = static_cast<float>(numbers.Uniform(1.0, 5.0));
  constexpr double kFewStrengths[] = {0.0, 1.0, 1.0};
  const int32_t strength = numbers.Integer(0, 3);
  c.gate.strength =
      static_cast<float>(strength < 3 ? kFewStrengths[strength] : numbers.Uniform(0.0, 1.0));
  c.gate.group_blocks = numbers.Integer(0, 1) == 1;
  const int64_t rows = c.shape.rows();
  const int64_t q_cols = int64_t{c.shape.num_query_heads} * c.shape.head_dim;
  const int64_t kv_cols = int64_t{c.shape.num_kv_heads} * c.shape.head_dim;
  const double spread = numbers.Uniform(0.5, 2.0);
  c.q = numbers.Normal(rows * q_cols, spread);
  c.k = numbers.Normal(rows * kv_cols);
  c.v = numbers.Normal(rows * kv_cols);
  c.grad_out = numbers.Normal(rows * q_cols);
  if (c.gate.kind == GateKind::kNone) {
    if (numbers.Integer(0, 1) == 1) c.blocks = RandomBlocks(numbers, c.shape);
    if (numbers.Integer(0, 1) == 1) c.window = numbers.Integer(1, longest);
    return c;
  }
  c.tau = numbers.Normal(rows * c.shape.num_query_heads, 1.0, numbers.Uniform(-2.0, 2.0));
  if (numbers.Integer(0, 3) > 0) {
    c.grad_gate_sum = numbers.Normal(rows * c.shape.num_query_heads, 0.1);
  }
  if (numbers.Integer(0, 3) > 0) {
    c.grad_block_sum = numbers.Normal(rows * c.gate.block_heads(c.shape), 0.3);
  }
  return c;
}

void ClearNearTies(AttentionCase& c, DType rounding, double margin) {
  if (c.grad_block_sum.empty()) return;
  const AttentionShape& s = c.shape;
  const auto rounded = [&](double x) {
    return rounding == DType::kFloat64 ? x : RoundTo(rounding, static_cast<float>(x));
  };
  const int32_t heads = c.gate.block_heads(s);
  const int32_t together = s.num_query_heads / heads;
  for (int32_t b = 0; b < s.sequences; ++b) {
    for (int32_t head = 0; head < heads; ++head) {
      for (int32_t t = 0; t < s.length; ++t) {
        for (int32_t block = 0; block < (t + 1) / kRegulariserBlock; ++block) {
          std::vector<double> distances;  // of scores from their thresholds
          for (int32_t h = head * together; h < (head + 1) * together; ++h) {
            for (int32_t i = 0; i < kRegulariserBlock; ++i) {
              const int64_t row = int64_t{b} * s.length + t;
              const int64_t key = int64_t{b} * s.length + block * kRegulariserBlock + i;
              double dot = 0.0;
              for (int32_t e = 0; e < s.head_dim; ++e) {
                dot +=
                    rounded(
                        c.q[static_cast<size_t>((row * s.num_query_heads + h) * s.head_dim + e)]) *
                    rounded(c.k[static_cast<size_t>(
                        (key * s.num_kv_heads + h / s.group()) * s.head_dim + e)]);
              }
              distances.push_back(s.scale * dot -
                                  c.tau[static_cast<size_t>(row * s.num_query_heads + h)]);
            }
          }
          std::nth_element(distances.begin(), distances.begin() + 1, distances.end(),
                           std::greater<>());
          if (distances[0] - distances[1] > margin) continue;
          c.grad_block_sum[static_cast<size_t>((int64_t{b} * heads + head) * s.length + t)] = 0.0;
        }
      }
    }
  }
}

Results RunAttention(const AttentionCase& c, Harness& harness, bool backward) {
  const AttentionShape& s = c.shape;
  const int64_t rows = s.rows();
  const int64_t q_cols = int64_t{s.num_query_heads} * s.head_dim;
  const int64_t kv_cols = int64_t{s.num_kv_heads} * s.head_dim;
  const int64_t row_sums = rows * s.num_query_heads;
  const int64_t block_sums = rows * c.gate.block_heads(s);
  const bool gated = c.gate.kind != GateKind::kNone;
  AttentionForwardParams forward{};
  forward.shape = s;
  forward.gate = c.gate;
  forward.q = harness.Activations(c.q, rows, q_cols);
  forward.k = harness.Activations(c.k, rows, kv_cols);
  forward.v = harness.Activations(c.v, rows, kv_cols);
  forward.tau = gated ? harness.Floats(c.tau) : nullptr;
  forward.out = harness.Activations(rows, q_cols);
  forward.lse = harness.Floats(row_sums);
  forward.gate_sum = gated ? harness.Floats(row_sums) : nullptr;
  forward.block_sum = gated ? harness.Floats(block_sums) : nullptr;
  forward.keys = {c.blocks.empty() ? nullptr : harness.Words(c.blocks), c.window};
  const size_t saved = harness.backend().AttentionSavedBytes(s, c.gate);
  if (saved > 0) {
    forward.saved =
        reinterpret_cast<std::byte*>(harness.Floats(static_cast<int64_t>(saved / 4 + 1)));
  }
  harness.backend().Attention(forward);
  Results results = {{"out", harness.Read(forward.out)},
                     {"lse", harness.Read(forward.lse, row_sums)}};
  if (gated) {
    results.push_back({"gate_sum", harness.Read(forward.gate_sum, row_sums)});
    results.push_back({"block_sum", harness.Read(forward.block_sum, block_sums)});
  }
  if (!backward) return results;

  AttentionBackwardParams params{};
  params.forward = forward;
  params.grad_out = harness.Activations(c.grad_out, rows, q_cols);
  if (!c.grad_gate_sum.empty()) {
    params.grad_gate_sum = {harness.Floats(c.grad_gate_sum), int64_t{s.num_query_heads} * s.length,
                            s.length};
  }
  if (!c.grad_block_sum.empty()) {
    params.grad_block_sum = {harness.Floats(c.grad_block_sum),
                             int64_t{c.gate.block_heads(s)} * s.length, s.length};
  }
  params.grad_q = harness.Activations(rows, q_cols);
  params.grad_k = harness.Activations(rows, kv_cols);
  params.grad_v = harness.Activations(rows, kv_cols);
  params.grad_tau = gated ? harness.Floats(row_sums) : nullptr;
  harness.backend().AttentionBackward(params);
  results.push_back({"dq", harness.Read(params.grad_q)});
  results.push_back({"dk", harness.Read(params.grad_k)});
  results.push_back({"dv", harness.Read(params.grad_v)});
  if (gated) results.push_back({"dtau", harness.Read(params.grad_tau, row_sums)});
  return results;
}

}  // namespace eta::training::testing
