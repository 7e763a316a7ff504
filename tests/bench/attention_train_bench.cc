// Times gated attention of training on a GPU, forward and backward, against the same kernels
// without a gate, after it has compared a small case with the reference. FLOP are those of causal
// attention: 2 T^2 d per head forward, 2.5 times as many backward, whatever the kernels compute
// again.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "tests/testing/training/gated_attention_case.h"
#include "training/cuda/cuda_backend.h"
#include "training/reference/reference_backend.h"

namespace eta::testing {
namespace {

using training::GateKind;
using training::Tensor;
using training::TrainingBackend;

struct Options {
  std::vector<int32_t> lengths = {2048, 4096, 8192, 16384};
  int32_t heads = 128;  // B * HQ
  int32_t query_heads = 16;
  int32_t kv_heads = 16;
  int32_t head_dim = 64;
  double beta = 5.0;
  double limit = 989.0;  // dense bfloat16 TFLOP/s of the card
  int repeats = 10;
};

// Random memory of the backend: bfloat16 rows, or float32.
class Inputs {
 public:
  explicit Inputs(TrainingBackend& backend) : backend_(backend), some_(1'000'003 / 8 * 8) {
    const HostTensor normal = Normal(random_, 1, std::ssize(some_));
    for (int64_t i = 0; i < std::ssize(some_); ++i) {
      StoreElement(DType::kBFloat16, some_.data(), i, normal.data[static_cast<size_t>(i)]);
    }
  }

  Tensor Rows(int64_t rows, int64_t cols, bool fill) {
    const Tensor tensor = {.data = Allocate(rows * cols * 2),
                           .dtype = DType::kBFloat16,
                           .rows = rows,
                           .cols = cols,
                           .stride = cols};
    if (!fill) return tensor;
    // The same elements again and again; a period is longer than any row.
    for (int64_t at = 0; at < rows * cols; at += std::ssize(some_)) {
      const int64_t count = std::min<int64_t>(std::ssize(some_), rows * cols - at);
      backend_.Upload(tensor.as<uint16_t>() + at, some_.data(), static_cast<size_t>(count) * 2);
    }
    return tensor;
  }
  float* Floats(int64_t count, float mean, float deviation) {
    auto* to = reinterpret_cast<float*>(Allocate(count * 4));
    std::vector<float> host = Normal(random_, 1, count, deviation).data;
    for (float& value : host) value += mean;
    backend_.Upload(to, host.data(), host.size() * sizeof(float));
    return to;
  }
  std::byte* Allocate(int64_t bytes) {
    buffers_.push_back(*backend_.Allocate(static_cast<size_t>(std::max<int64_t>(bytes, 1))));
    return buffers_.back()->data();
  }

 private:
  TrainingBackend& backend_;
  Random random_{1};
  std::vector<uint16_t> some_;  // bfloat16
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// Mean seconds of a call.
template <typename Call>
double Seconds(TrainingBackend& backend, int repeats, const Call& call) {
  for (int i = 0; i < 2; ++i) call();
  if (absl::Status status = backend.Finish(); !status.ok()) {
    std::printf("%s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) call();
  (void)backend.Finish();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / repeats;
}

struct Times {
  double forward;
  double backward;
};

Times Measure(TrainingBackend& backend, const Options& options, int32_t length, GateKind kind,
              bool blocks) {
  Inputs inputs(backend);
  const training::AttentionShape shape = {
      .sequences = std::max(1, options.heads / options.query_heads),
      .length = length,
      .num_query_heads = options.query_heads,
      .num_kv_heads = options.kv_heads,
      .head_dim = options.head_dim,
      .scale = 1.0f / std::sqrt(static_cast<float>(options.head_dim))};
  const training::AttentionGate gate = {
      .kind = kind, .beta = static_cast<float>(options.beta), .group_blocks = blocks};
  const int64_t rows = shape.rows();
  const int64_t queries = rows * shape.num_query_heads;
  const int64_t q_cols = int64_t{shape.num_query_heads} * shape.head_dim;
  const int64_t kv_cols = int64_t{shape.num_kv_heads} * shape.head_dim;
  const bool gated = kind != GateKind::kNone;
  const training::AttentionForwardParams forward = {
      .shape = shape,
      .gate = gate,
      .q = inputs.Rows(rows, q_cols, true),
      .k = inputs.Rows(rows, kv_cols, true),
      .v = inputs.Rows(rows, kv_cols, true),
      .tau = gated ? inputs.Floats(queries, 1.0f, 0.3f) : nullptr,
      .out = inputs.Rows(rows, q_cols, false),
      .lse = inputs.Floats(queries, 0.0f, 0.0f),
      .gate_sum = gated ? inputs.Floats(queries, 0.0f, 0.0f) : nullptr,
      .block_sum = blocks ? inputs.Floats(queries, 0.0f, 0.0f) : nullptr,
      .saved = blocks
                   ? inputs.Allocate(static_cast<int64_t>(backend.AttentionSavedBytes(shape, gate)))
                   : nullptr};
  const float* row_grad = inputs.Floats(length, 0.0f, 1e-3f);
  const training::AttentionBackwardParams backward = {
      .forward = forward,
      .grad_out = inputs.Rows(rows, q_cols, true),
      .grad_gate_sum = {.data = gated ? row_grad : nullptr},
      .grad_block_sum = {.data = blocks ? row_grad : nullptr},
      .grad_q = inputs.Rows(rows, q_cols, false),
      .grad_k = inputs.Rows(rows, kv_cols, false),
      .grad_v = inputs.Rows(rows, kv_cols, false),
      .grad_tau = gated ? inputs.Floats(queries, 0.0f, 0.0f) : nullptr};
  Times times = {};
  times.forward = Seconds(backend, options.repeats, [&] { backend.Attention(forward); });
  times.backward = Seconds(backend, options.repeats, [&] { backend.AttentionBackward(backward); });
  return times;
}

bool Check(TrainingBackend& backend, const Options& options) {
  GatedAttentionCase test;
  test.shape = {.sequences = 1,
                .length = 333,
                .num_query_heads = 2,
                .num_kv_heads = 1,
                .head_dim = options.head_dim,
                .scale = 1.0f / std::sqrt(static_cast<float>(options.head_dim))};
  test.gate = {.kind = GateKind::kSilu, .beta = static_cast<float>(options.beta)};
  Random random(3);
  FillAttentionCase(random, test);
  const auto reference = training::reference::MakeBackend(DType::kFloat64);
  const NamedDifference largest =
      LargestDifference(RunAttention(backend, test), RunAttention(*reference, test));
  std::printf("check: largest relative difference %.2e (%s)\n", largest.difference,
              largest.name.c_str());
  return largest.difference <= 1e-2;
}

int Run(const Options& options) {
  auto backends = training::cuda::MakeBackends(1);
  if (!backends.ok()) {
    std::printf("%s\n", std::string(backends.status().message()).c_str());
    return 1;
  }
  TrainingBackend& backend = *backends->front();
  std::printf("%s\n", backend.description().c_str());
  if (!Check(backend, options)) return 1;
  std::printf("B*HQ %d, HKV %d of %d, d %d; ms and TFLOP/s (share of %.0f)\n", options.heads,
              options.kv_heads, options.query_heads, options.head_dim, options.limit);
  std::printf("%7s %-12s %18s %18s %18s %8s\n", "T", "gate", "forward", "backward", "both",
              "ratio");
  for (const int32_t length : options.lengths) {
    double plain = 0.0;
    const std::pair<const char*, bool> kinds[] = {
        {"none", false}, {"silu", false}, {"silu+blocks", true}};
    for (const auto& [name, blocks] : kinds) {
      const GateKind kind = std::string(name) == "none" ? GateKind::kNone : GateKind::kSilu;
      const Times times = Measure(backend, options, length, kind, blocks);
      const double flop = 2.0 * length * length * options.head_dim * options.heads;
      const double both = times.forward + times.backward;
      if (kind == GateKind::kNone) plain = both;
      const auto cell = [&](double seconds, double share) {
        std::printf(" %8.3f %4.0f %4.2f", seconds * 1e3, flop * share / seconds * 1e-12,
                    flop * share / seconds * 1e-12 / options.limit);
      };
      std::printf("%7d %-12s", length, name);
      cell(times.forward, 1.0);
      cell(times.backward, 2.5);
      cell(both, 3.5);
      std::printf(" %8.2f\n", both / plain);
    }
  }
  return 0;
}

}  // namespace
}  // namespace eta::testing

int main(int argc, char** argv) {
  eta::testing::Options options;
  CLI::App app("Times gated attention of training on a GPU.");
  app.add_option("--lengths", options.lengths, "Tokens of a sequence")->delimiter(',');
  app.add_option("--heads", options.heads, "Sequences times query heads");
  app.add_option("--query_heads", options.query_heads, "Query heads of a sequence");
  app.add_option("--kv_heads", options.kv_heads, "KV heads of a sequence");
  app.add_option("--head_dim", options.head_dim, "64 or 128");
  app.add_option("--beta", options.beta, "Sharpness of the gate");
  app.add_option("--limit", options.limit, "TFLOP/s of the card, bfloat16 without sparsity");
  app.add_option("--repeats", options.repeats, "Measured calls");
  CLI11_PARSE(app, argc, argv);
  return eta::testing::Run(options);
}
