#include "tests/testing/training/gated_attention_case.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/testing/training/backend_memory.h"

namespace eta::testing {
namespace {

using training::GateKind;
using training::Tensor;

std::vector<float> RoundedNormal(Random& random, int64_t count, float deviation) {
  return Rounded(Normal(random, 1, count, deviation), DType::kBFloat16).data;
}

}  // namespace

std::string GatedAttentionCase::Describe() const {
  return absl::StrCat("B ", shape.sequences, " T ", shape.length, " HQ ", shape.num_query_heads,
                      " HKV ", shape.num_kv_heads, " d ", shape.head_dim, " gate ",
                      static_cast<int>(gate.kind), " beta ", gate.beta, " strength ", gate.strength,
                      " group_blocks ", gate.group_blocks, " sums ", gate_sums, block_sums,
                      " tau[0] ", tau.empty() ? 0.0f : tau[0], " chosen blocks ", blocks.size(),
                      " window ", window);
}

void FillAttentionCase(Random& random, GatedAttentionCase& test) {
  const training::AttentionShape& shape = test.shape;
  const int64_t rows = shape.rows();
  const int64_t queries = rows * shape.num_query_heads;
  const int64_t keys = rows * shape.num_kv_heads;
  const auto deviation = static_cast<float>(UniformReal(random, 0.5, 1.5));
  test.q = RoundedNormal(random, queries * shape.head_dim, deviation);
  test.k = RoundedNormal(random, keys * shape.head_dim, 1.0f);
  test.v = RoundedNormal(random, keys * shape.head_dim, 1.0f);
  test.grad_out = RoundedNormal(random, queries * shape.head_dim, 1.0f);
  test.grad_gate_sum = Normal(random, 1, queries, 0.1f).data;
  test.grad_block_sum = Normal(random, 1, rows * test.gate.block_heads(shape), 0.1f).data;
  // Thresholds among the scores, or far below them, as when training starts.
  const double centre = Uniform(random, 0, 3) == 0 ? -8.0 : UniformReal(random, -1.0, 2.0);
  test.tau = Normal(random, 1, queries, 0.3f).data;
  for (float& tau : test.tau) tau += static_cast<float>(centre);
}

GatedAttentionCase RandomAttentionCase(Random& random, int32_t longest) {
  GatedAttentionCase test;
  const auto kv_heads = static_cast<int32_t>(Uniform(random, 1, 2));
  const auto group = static_cast<int32_t>(Uniform(random, 1, 4));
  // Half of the lengths are about those of tiles.
  const bool about_tiles = Uniform(random, 0, 1) == 0;
  const int64_t length = about_tiles ? 64 * Uniform(random, 1, 4) + Uniform(random, -1, 1)
                                     : Uniform(random, 1, longest);
  test.shape = {.sequences = static_cast<int32_t>(Uniform(random, 1, 2)),
                .length = static_cast<int32_t>(std::min<int64_t>(length, longest)),
                .num_query_heads = kv_heads * group,
                .num_kv_heads = kv_heads,
                .head_dim = Uniform(random, 0, 3) == 0 ? 128 : 64};
  test.shape.scale = 1.0f / std::sqrt(static_cast<float>(test.shape.head_dim));
  const GateKind kinds[] = {GateKind::kNone, GateKind::kSilu, GateKind::kSilu, GateKind::kSilu,
                            GateKind::kAdditive};
  test.gate.kind = kinds[Uniform(random, 0, 4)];
  test.gate.beta = static_cast<float>(UniformReal(random, 1.0, 5.0));
  const int64_t strength = Uniform(random, 0, 3);
  test.gate.strength = strength == 0   ? 0.0f
                       : strength == 1 ? static_cast<float>(UniformReal(random, 0.0, 1.0))
                                       : 1.0f;
  test.gate.group_blocks = Uniform(random, 0, 1) == 0;
  test.gate_sums = Uniform(random, 0, 3) != 0;
  test.block_sums = Uniform(random, 0, 1) == 0;
  test.beside = Uniform(random, 0, 1) == 0;
  FillAttentionCase(random, test);
  return test;
}

GatedAttentionResults RunAttention(training::TrainingBackend& backend,
                                   const GatedAttentionCase& test) {
  const training::AttentionShape& shape = test.shape;
  const DType dtype = backend.activation_dtype();
  const bool gated = test.gate.kind != GateKind::kNone;
  const bool gate_sums = gated && test.gate_sums;
  const bool block_sums = gated && test.block_sums;
  const int64_t rows = shape.rows();
  const int64_t q_cols = int64_t{shape.num_query_heads} * shape.head_dim;
  const int64_t kv_cols = int64_t{shape.num_kv_heads} * shape.head_dim;
  const int64_t queries = rows * shape.num_query_heads;
  const int64_t blocks = rows * test.gate.block_heads(shape);
  BackendMemory memory(backend);
  training::KeySelection chosen = {.blocks = nullptr, .window = test.window};
  if (!test.blocks.empty()) {
    const size_t bytes = test.blocks.size() * sizeof(uint64_t);
    std::byte* at = memory.Allocate(bytes);
    backend.Upload(at, test.blocks.data(), bytes);
    chosen.blocks = reinterpret_cast<const uint64_t*>(at);
  }
  const Tensor whole = memory.Matrix(dtype, rows, q_cols + 2 * kv_cols);
  Tensor q = whole.Columns(0, q_cols);
  Tensor k = whole.Columns(q_cols, kv_cols);
  Tensor v = whole.Columns(q_cols + kv_cols, kv_cols);
  const Tensor grad_whole = memory.Matrix(dtype, rows, q_cols + 2 * kv_cols);
  if (!test.beside) {
    q = memory.Matrix(dtype, rows, q_cols);
    k = memory.Matrix(dtype, rows, kv_cols);
    v = memory.Matrix(dtype, rows, kv_cols);
  }
  memory.Write(q, test.q);
  memory.Write(k, test.k);
  memory.Write(v, test.v);
  const Tensor out = memory.Matrix(dtype, rows, q_cols);
  const Tensor grad_out = memory.Activations(test.grad_out, rows, q_cols);
  const training::AttentionForwardParams forward = {
      .shape = shape,
      .gate = test.gate,
      .q = q,
      .k = k,
      .v = v,
      .tau = gated ? memory.Floats(test.tau) : nullptr,
      .out = out,
      .lse = memory.Floats(queries, -1.0f),
      .gate_sum = gate_sums ? memory.Floats(queries, -1.0f) : nullptr,
      .block_sum = block_sums ? memory.Floats(blocks, -1.0f) : nullptr,
      .saved = memory.Allocate(backend.AttentionSavedBytes(shape, test.gate)),
      .keys = chosen};
  backend.Attention(forward);
  const auto gradient = [&](const std::vector<float>& values, int64_t heads) {
    return training::RowGradient{.data = memory.Floats(values),
                                 .sequence_stride = heads * shape.length,
                                 .head_stride = shape.length};
  };
  const training::AttentionBackwardParams backward = {
      .forward = forward,
      .grad_out = grad_out,
      .grad_gate_sum =
          gate_sums ? gradient(test.grad_gate_sum, shape.num_query_heads) : training::RowGradient{},
      .grad_block_sum = block_sums ? gradient(test.grad_block_sum, test.gate.block_heads(shape))
                                   : training::RowGradient{},
      .grad_q = grad_whole.Columns(0, q_cols),
      .grad_k = grad_whole.Columns(q_cols, kv_cols),
      .grad_v = grad_whole.Columns(q_cols + kv_cols, kv_cols),
      .grad_tau = gated ? memory.Floats(queries, -1.0f) : nullptr};
  backend.AttentionBackward(backward);

  GatedAttentionResults results;
  results.out = memory.Read(out);
  results.lse = memory.Read(forward.lse, queries);
  if (gate_sums) results.gate_sum = memory.Read(forward.gate_sum, queries);
  if (block_sums) results.block_sum = memory.Read(forward.block_sum, blocks);
  if (gated) results.grad_tau = memory.Read(backward.grad_tau, queries);
  results.grad_q = memory.Read(backward.grad_q);
  results.grad_k = memory.Read(backward.grad_k);
  results.grad_v = memory.Read(backward.grad_v);
  return results;
}

NamedDifference LargestDifference(const GatedAttentionResults& results,
                                  const GatedAttentionResults& expected) {
  const auto one = [](const std::vector<double>& values, double each) {
    return each * std::sqrt(static_cast<double>(values.size()));
  };
  const NamedDifference all[] = {
      {"out", Difference(results.out, expected.out, 0.0)},
      {"lse", Difference(results.lse, expected.lse, one(expected.lse, 1.0))},
      {"gate_sum", Difference(results.gate_sum, expected.gate_sum, one(expected.gate_sum, 0.1))},
      {"block_sum",
       Difference(results.block_sum, expected.block_sum, one(expected.block_sum, 0.1))},
      // A sequence of one token has no gradients of q and k.
      {"grad_q", Difference(results.grad_q, expected.grad_q, one(expected.grad_q, 1e-3))},
      {"grad_k", Difference(results.grad_k, expected.grad_k, one(expected.grad_k, 1e-3))},
      {"grad_v", Difference(results.grad_v, expected.grad_v, 0.0)},
      {"grad_tau", Difference(results.grad_tau, expected.grad_tau, one(expected.grad_tau, 1e-3))}};
  return *std::max_element(std::begin(all), std::end(all),
                           [](const NamedDifference& a, const NamedDifference& b) {
                             return !(b.difference <= a.difference);
                           });
}

}  // namespace eta::testing
