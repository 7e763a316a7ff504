#include "tests/testing/training/op_cases.h"

#include <cmath>
#include <utility>

#include "tests/testing/training/native_sparse_case.h"

namespace eta::training::testing {
namespace {

std::vector<int32_t> Tokens(Numbers& numbers, int64_t count, int32_t lowest, int32_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(numbers.Integer(lowest, vocab - 1));
  return tokens;
}

std::vector<float> Weights(Numbers& numbers, int64_t count) {
  std::vector<float> weights;
  for (int64_t i = 0; i < count; ++i) {
    weights.push_back(static_cast<float>(numbers.Uniform(0.0, 1.0)));
  }
  return weights;
}

Results Embedding(uint64_t seed, Harness& h) {
  Numbers n(seed);
  const int64_t rows = n.Integer(1, 150);
  const int32_t vocab = n.Integer(1, 60);
  const int64_t width = n.Integer(1, 130);
  const std::vector<int32_t> tokens = Tokens(n, rows, 0, vocab);
  const Tensor out = h.Residual(n.Normal(rows * width), rows, width);
  h.backend().Embed({tokens, h.Activations(n.Normal(vocab * width), vocab, width), out});
  float* grad = h.Floats(n.Normal(vocab * width));
  h.backend().EmbedBackward({tokens, h.Residual(n.Normal(rows * width), rows, width), grad});
  return {{"out", h.Read(out)}, {"grad_table", h.Read(grad, vocab * width)}};
}

Results RowNorm(uint64_t seed, Harness& h) {
  Numbers n(seed);
  const int64_t rows = n.Integer(1, 200);
  const int64_t width = n.Integer(1, 300);
  const Tensor x = h.Residual(n.Normal(rows * width, n.Uniform(0.1, 3.0)), rows, width);
  const float* weight = h.Floats(n.Normal(width, 0.3, 1.0));
  const Tensor out = h.Activations(rows, width);
  float* inverse = h.Floats(rows);
  h.backend().RmsNorm({x, weight, 1e-5f, out, inverse});
  const Tensor grad_x = h.Residual(n.Normal(rows * width), rows, width);
  float* grad_weight = h.Floats(n.Normal(width));
  h.backend().RmsNormBackward({x, weight, inverse,
                               h.Activations(n.Normal(rows * width), rows, width), grad_x,
                               grad_weight});
  return {{"out", h.Read(out)},
          {"inverse_rms", h.Read(inverse, rows)},
          {"grad_x", h.Read(grad_x)},
          {"grad_weight", h.Read(grad_weight, width)}};
}

Results Product(uint64_t seed, Harness& h) {
  Numbers n(seed);
  const int64_t rows = n.Integer(1, 230);
  const int64_t in = n.Integer(1, 260);
  const int64_t out_cols = n.Integer(1, 260);
  // Columns of a wider tensor, as q, k and v are.
  const int64_t wider = out_cols + n.Integer(0, 20);
  const Tensor x = h.Activations(n.Normal(rows * in), rows, in);
  const Tensor weight = h.Activations(n.Normal(out_cols * in, 0.1), out_cols, in);
  const Tensor out = h.Activations(rows, out_cols);
  h.backend().MatMul({x, weight, out, false});
  const Tensor residual = h.Residual(n.Normal(rows * out_cols), rows, out_cols);
  h.backend().MatMul({x, weight, residual, true});
  const Tensor grad =
      h.Activations(n.Normal(rows * wider), rows, wider).Columns(wider - out_cols, out_cols);
  const Tensor grad_x = h.Activations(rows, in);
  h.backend().MatMulInput({grad, weight, grad_x});
  float* grad_weight = h.Floats(n.Normal(out_cols * in));
  h.backend().MatMulWeight({grad, x, grad_weight});
  return {{"out", h.Read(out)},
          {"residual", h.Read(residual)},
          {"grad_x", h.Read(grad_x)},
          {"grad_weight", h.Read(grad_weight, out_cols * in)}};
}

Results Bias(uint64_t seed, Harness& h) {
  Numbers n(seed);
  const int64_t rows = n.Integer(1, 200);
  const int64_t width = n.Integer(1, 300);
  const Tensor x = h.Activations(n.Normal(rows * width), rows, width);
  const float* bias = h.Floats(n.Normal(width));
  h.backend().AddBias({x, bias});
  const Tensor residual = h.Residual(n.Normal(rows * width), rows, width);
  h.backend().AddBias({residual, bias});
  float* grad = h.Floats(n.Normal(width));
  h.backend().BiasBackward({h.Activations(n.Normal(rows * width), rows, width), grad});
  return {{"x", h.Read(x)}, {"residual", h.Read(residual)}, {"grad_bias", h.Read(grad, width)}};
}

struct Heads {
  int64_t rows;
  int32_t d;
  int64_t q_cols;
  int64_t kv_cols;
  int32_t query_heads;
};
Heads RandomHeads(Numbers& n, int32_t length) {
  Heads heads{};
  heads.rows = int64_t{n.Integer(1, 3)} * length;
  heads.d = 2 * n.Integer(1, 64);
  const int32_t kv_heads = n.Integer(1, 3);
  heads.query_heads = kv_heads * n.Integer(1, 3);
  heads.q_cols = int64_t{heads.query_heads} * heads.d;
  heads.kv_cols = int64_t{kv_heads} * heads.d;
  return heads;
}

Results HeadNorms(uint64_t seed, Harness& h) {
  Numbers n(seed);
  const Heads s = RandomHeads(n, n.Integer(1, 50));
  NormHeadsParams forward{};
  forward.q = h.Activations(n.Normal(s.rows * s.q_cols), s.rows, s.q_cols);
  forward.k = h.Activations(n.Normal(s.rows * s.kv_cols), s.rows, s.kv_cols);
  forward.q_weight = h.Floats(n.Normal(s.d, 0.3, 1.0));
  forward.k_weight = h.Floats(n.Normal(s.d, 0.3, 1.0));
  forward.head_dim = s.d;
  forward.eps = 1e-6f;
  forward.q_out = h.Activations(s.rows, s.q_cols);
  forward.k_out = h.Activations(s.rows, s.kv_cols);
  forward.q_inverse_rms = h.Floats(s.rows * s.q_cols / s.d);
  forward.k_inverse_rms = h.Floats(s.rows * s.kv_cols / s.d);
  h.backend().NormHeads(forward);
  const Tensor grad_q = h.Activations(n.Normal(s.rows * s.q_cols), s.rows, s.q_cols);
  const Tensor grad_k = h.Activations(n.Normal(s.rows * s.kv_cols), s.rows, s.kv_cols);
  float* grad_q_weight = h.Floats(n.Normal(s.d));
  float* grad_k_weight = h.Floats(n.Normal(s.d));
  h.backend().NormHeadsBackward({forward, grad_q, grad_k, grad_q_weight, grad_k_weight});
  return {{"q", h.Read(forward.q_out)},
          {"k", h.Read(forward.k_out)},
          {"grad_q", h.Read(grad_q)},
          {"grad_k", h.Read(grad_k)},
          {"grad_q_weight", h.Read(grad_q_weight, s.d)},
          {"grad_k_weight", h.Read(grad_k_weight, s.d)}};
}

Results Rotation(uint64_t seed, Harness& h) {
  Numbers n(seed);
  const int32_t length = n.Integer(1, 200);
  const Heads s = RandomHeads(n, length);
  RopeParams params{};
  params.q = h.Activations(n.Normal(s.rows * s.q_cols), s.rows, s.q_cols);
  params.k = h.Activations(n.Normal(s.rows * s.kv_cols), s.rows, s.kv_cols);
  params.head_dim = s.d;
  params.length = length;
  params.theta = n.Uniform(1e3, 1e6);
  constexpr RopeScalingType kTypes[] = {RopeScalingType::kNone, RopeScalingType::kLinear,
                                        RopeScalingType::kLlama3, RopeScalingType::kYarn};
  params.scaling.type = kTypes[n.Integer(0, 3)];
  params.scaling.factor = n.Uniform(1.0, 8.0);
  params.scaling.original_context = 128;
  params.scaling.ramp_end = 8.0;
  if (params.scaling.type == RopeScalingType::kYarn) params.scaling.attention_factor = 1.2;
  h.backend().Rope(params);
  Results results = {{"q", h.Read(params.q)}, {"k", h.Read(params.k)}};
  params.q = h.Activations(n.Normal(s.rows * s.q_cols), s.rows, s.q_cols);
  params.k = h.Activations(n.Normal(s.rows * s.kv_cols), s.rows, s.kv_cols);
  params.inverse = true;
  h.backend().Rope(params);
  results.push_back({"grad_q", h.Read(params.q)});
  results.push_back({"grad_k", h.Read(params.k)});
  // Keys alone, of other places than one after the other.
  params.q = {};
  params.k = h.Activations(n.Normal(s.rows * s.kv_cols), s.rows, s.kv_cols);
  params.first = n.Integer(0, 40);
  params.stride = n.Integer(1, 20);
  h.backend().Rope(params);
  results.push_back({"placed k", h.Read(params.k)});
  return results;
}

Results Thresholds(uint64_t seed, Harness& h) {
  Numbers n(seed);
  const Heads s = RandomHeads(n, n.Integer(1, 80));
  const bool predicted = n.Integer(0, 2) > 0;
  const int64_t weights = s.query_heads * s.q_cols;
  const Tensor q = h.Activations(n.Normal(s.rows * s.q_cols), s.rows, s.q_cols);
  const float* weight = predicted ? h.Floats(n.Normal(weights, 0.1)) : nullptr;
  float* tau = h.Floats(s.rows * s.query_heads);
  h.backend().PredictThresholds({s.query_heads, q, weight, h.Floats(n.Normal(s.query_heads)), tau});
  const Tensor grad_q = h.Activations(n.Normal(s.rows * s.q_cols), s.rows, s.q_cols);
  float* grad_weight = predicted ? h.Floats(n.Normal(weights)) : nullptr;
  float* grad_bias = h.Floats(n.Normal(s.query_heads));
  h.backend().ThresholdsBackward({s.query_heads, q, weight,
                                  h.Floats(n.Normal(s.rows * s.query_heads)), grad_q, grad_weight,
                                  grad_bias});
  Results results = {{"tau", h.Read(tau, s.rows * s.query_heads)},
                     {"grad_q", h.Read(grad_q)},
                     {"grad_bias", h.Read(grad_bias, s.query_heads)}};
  if (predicted) results.push_back({"grad_weight", h.Read(grad_weight, weights)});
  return results;
}

Results FeedForwardGate(uint64_t seed, Harness& h) {
  Numbers n(seed);
  const int64_t rows = n.Integer(1, 100);
  const int64_t width = n.Integer(1, 200);
  const Tensor gate_up = h.Activations(n.Normal(rows * 2 * width, 2.0), rows, 2 * width);
  const Tensor out = h.Activations(rows, width);
  h.backend().SwiGlu({gate_up, out});
  const Tensor grad = h.Activations(n.Normal(rows * width), rows, width);
  const Tensor apart = h.Activations(rows, 2 * width);
  h.backend().SwiGluBackward({gate_up, grad, apart});
  h.backend().SwiGluBackward({gate_up, grad, gate_up});
  return {{"out", h.Read(out)}, {"grad", h.Read(apart)}, {"grad in place", h.Read(gate_up)}};
}

Results Losses(uint64_t seed, Harness& h) {
  Numbers n(seed);
  const int64_t rows = n.Integer(1, 80);
  const int32_t vocab = n.Integer(2, 400);
  const int64_t width = n.Integer(1, 96);
  const int64_t teacher_width = n.Integer(1, 96);
  const bool teaches = n.Integer(0, 1) == 1;
  const bool frozen = n.Integer(0, 3) == 0;
  const std::vector<int32_t> targets = Tokens(n, rows, -1, vocab);
  const std::vector<float> ce_weights = Weights(n, rows);
  const std::vector<float> kl_weights = Weights(n, rows);
  HeadLossParams params{};
  params.hidden = h.Activations(n.Normal(rows * width), rows, width);
  params.head = h.Activations(n.Normal(vocab * width, 0.3), vocab, width);
  params.targets = targets;
  params.ce_weights = ce_weights;
  params.cross_entropy = h.Floats(rows);
  if (teaches) {
    params.teacher_hidden = h.Activations(n.Normal(rows * teacher_width), rows, teacher_width);
    params.teacher_head = h.Activations(n.Normal(vocab * teacher_width, 0.3), vocab, teacher_width);
    params.kl_weights = kl_weights;
    params.divergence = h.Floats(rows);
  }
  params.grad_hidden = h.Activations(rows, width);
  params.grad_head = frozen ? nullptr : h.Floats(n.Normal(vocab * width));
  h.backend().HeadLoss(params);
  Results results = {{"cross_entropy", h.Read(params.cross_entropy, rows)},
                     {"grad_hidden", h.Read(params.grad_hidden)}};
  if (teaches) results.push_back({"divergence", h.Read(params.divergence, rows)});
  if (!frozen) results.push_back({"grad_head", h.Read(params.grad_head, vocab * width)});
  return results;
}

// Logits are whole numbers, so that many are equal in any type.
Results Hits(uint64_t seed, Harness& h) {
  Numbers n(seed);
  const int64_t rows = n.Integer(1, 80);
  const int32_t vocab = n.Integer(2, 40);
  const int64_t width = n.Integer(1, 6);
  const auto whole = [&](int64_t count) {
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(n.Integer(-2, 2));
    return values;
  };
  const std::vector<int32_t> targets = Tokens(n, rows, -1, vocab);
  const std::vector<float> weights(static_cast<size_t>(rows), 1.0f);
  HeadLossParams params{};
  params.hidden = h.Activations(whole(rows * width), rows, width);
  params.head = h.Activations(whole(vocab * width), vocab, width);
  params.targets = targets;
  params.ce_weights = weights;
  params.cross_entropy = h.Floats(rows);
  params.hit = h.Floats(rows);
  if (n.Integer(0, 1) == 1) {
    params.teacher_hidden = h.Activations(whole(rows * width), rows, width);
    params.teacher_head = h.Activations(whole(vocab * width), vocab, width);
    params.kl_weights = weights;
    params.divergence = h.Floats(rows);
  }
  h.backend().HeadLoss(params);
  return {{"hit", h.Read(params.hit, rows)}};
}

// Head dimensions of what follows.
const std::vector<int32_t>& SomeHeadDims() {
  static const std::vector<int32_t> dims = {1, 6, 16, 64, 128};
  return dims;
}

Results Windows(uint64_t seed, Harness& h) {
  return RunGatherWindows(RandomWindowsCase(seed, SomeHeadDims(), 200), h);
}

Results Branches(uint64_t seed, Harness& h) {
  return RunMixBranches(RandomBranchesCase(seed, SomeHeadDims(), 80), h);
}

Results Addition(uint64_t seed, Harness& h) {
  Numbers n(seed);
  const int64_t rows = n.Integer(1, 150);
  const int64_t width = n.Integer(1, 200);
  const Tensor to = h.Activations(n.Normal(rows * width), rows, width);
  h.backend().Add({h.Activations(n.Normal(rows * width), rows, width), to});
  return {{"to", h.Read(to)}};
}

Results Sums(uint64_t seed, Harness& h) {
  Numbers n(seed);
  WeighRowSumsParams params{};
  params.sequences = n.Integer(1, 4);
  params.heads = n.Integer(1, 9);
  params.length = n.Integer(1, 300);
  const int64_t count = int64_t{params.sequences} * params.heads * params.length;
  params.x = h.Floats(n.Normal(count));
  params.weights = h.Floats(n.Normal(params.length));
  params.out = h.Floats(n.Normal(params.heads));
  h.backend().WeighRowSums(params);
  const int64_t elements = n.Integer(1, 40000);
  return {{"sums", h.Read(params.out, params.heads)},
          {"squares", {h.backend().SumSquares(h.Floats(n.Normal(elements)), elements)}}};
}

Results Optimizer(uint64_t seed, Harness& h) {
  Numbers n(seed);
  const int64_t count = n.Integer(1, 40000);
  std::vector<double> second = n.Normal(count, 0.1);
  for (double& value : second) value = std::abs(value);
  AdamWParams params{};
  params.values = h.Floats(n.Normal(count));
  params.gradients = h.Floats(n.Normal(count, 0.1));
  params.first = h.Floats(n.Normal(count, 0.1));
  params.second = h.Floats(second);
  const Tensor rounded = h.Activations(1, count);
  const bool rounds = rounded.dtype != DType::kFloat32;
  params.rounded = rounds ? rounded.data : nullptr;
  params.count = count;
  params.step = n.Integer(1, 1000);
  params.rate = 1e-2f;
  params.beta1 = 0.9f;
  params.beta2 = 0.95f;
  params.epsilon = 1e-8f;
  params.weight_decay = 0.1f;
  params.gradient_scale = static_cast<float>(n.Uniform(0.1, 1.0));
  h.backend().AdamW(params);
  const std::vector<double> values = h.Read(params.values, count);
  return {{"values", values},
          {"first", h.Read(params.first, count)},
          {"second", h.Read(params.second, count)},
          {"rounded", rounds ? h.Read(rounded) : values}};
}

}  // namespace

const std::vector<OpCase>& OpCases() {
  static const std::vector<OpCase> cases = {{"Embedding", Embedding},   {"RmsNorm", RowNorm},
                                            {"MatMul", Product},        {"Bias", Bias},
                                            {"NormHeads", HeadNorms},   {"Rope", Rotation},
                                            {"Thresholds", Thresholds}, {"SwiGlu", FeedForwardGate},
                                            {"HeadLoss", Losses},       {"Hits", Hits},
                                            {"GatherWindows", Windows}, {"MixBranches", Branches},
                                            {"Add", Addition},          {"Sums", Sums},
                                            {"AdamW", Optimizer}};
  return cases;
}

}  // namespace eta::training::testing
