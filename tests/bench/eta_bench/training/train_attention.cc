// eta-bench train-attention: gated attention of training on a GPU, forward and backward, against
// the same kernels without a gate, after a small case was compared with the reference. FLOP are
// those of causal attention: 2 T^2 d per head forward, 2.5 times as many backward, whatever the
// kernels compute again.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/bench/eta_bench/eta_bench.h"
#include "tests/testing/training/gated_attention_case.h"
#include "training/cuda/cuda_backend.h"
#include "training/reference/reference_backend.h"

namespace eta::bench {
namespace {

using testing::HostTensor;
using testing::Normal;
using testing::Random;
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
  RequireOk(backend.Finish());
  const Stopwatch watch;
  for (int i = 0; i < repeats; ++i) call();
  RequireOk(backend.Finish());
  return watch.seconds() / repeats;
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

// The largest relative difference from the reference. Fails if it is too large.
double Check(TrainingBackend& backend, const Options& options) {
  testing::GatedAttentionCase test;
  test.shape = {.sequences = 1,
                .length = 333,
                .num_query_heads = 2,
                .num_kv_heads = 1,
                .head_dim = options.head_dim,
                .scale = 1.0f / std::sqrt(static_cast<float>(options.head_dim))};
  test.gate = {.kind = GateKind::kSilu, .beta = static_cast<float>(options.beta)};
  Random random(3);
  testing::FillAttentionCase(random, test);
  const auto reference = training::reference::MakeBackend(DType::kFloat64);
  const testing::NamedDifference largest = testing::LargestDifference(
      testing::RunAttention(backend, test), testing::RunAttention(*reference, test));
  if (!(largest.difference <= 1e-2)) {
    Fail(absl::StrCat(largest.name, " differs from the reference's by ", largest.difference));
  }
  return largest.difference;
}

Json Run(const Options& options) {
  const auto backends = Require(training::cuda::MakeBackends(1));
  TrainingBackend& backend = *backends.front();
  Json report = {{"bench", "train-attention"},
                 {"description", backend.description()},
                 {"heads", options.heads},
                 {"query_heads", options.query_heads},
                 {"kv_heads", options.kv_heads},
                 {"head_dim", options.head_dim},
                 {"largest_difference", Check(backend, options)},
                 {"rows", Json::array()}};
  for (const int32_t length : options.lengths) {
    double plain = 0.0;
    for (const char* gate : {"none", "silu", "silu+blocks"}) {
      const GateKind kind = gate == std::string_view("none") ? GateKind::kNone : GateKind::kSilu;
      const Times times =
          Measure(backend, options, length, kind, gate == std::string_view("silu+blocks"));
      const double flop = 2.0 * length * length * options.head_dim * options.heads;
      const double both = times.forward + times.backward;
      if (kind == GateKind::kNone) plain = both;
      report["rows"].push_back({{"length", length},
                                {"gate", gate},
                                {"forward_milliseconds", times.forward * 1e3},
                                {"forward_tflops", flop / times.forward * 1e-12},
                                {"backward_milliseconds", times.backward * 1e3},
                                {"backward_tflops", 2.5 * flop / times.backward * 1e-12},
                                {"milliseconds", both * 1e3},
                                {"tflops", 3.5 * flop / both * 1e-12},
                                {"share_of_limit", 3.5 * flop / both * 1e-12 / options.limit},
                                {"ratio", both / plain}});
    }
  }
  return report;
}

void Print(const Json& report) {
  std::printf("%s; largest relative difference from the reference %.2e\n\n",
              report["description"].get<std::string>().c_str(),
              report["largest_difference"].get<double>());
  PrintTable(report["rows"], {{"T", "length"},
                              {"gate", "gate"},
                              {"forward ms", "forward_milliseconds", 3},
                              {"TFLOP/s", "forward_tflops"},
                              {"backward ms", "backward_milliseconds", 3},
                              {"TFLOP/s", "backward_tflops"},
                              {"both ms", "milliseconds", 3},
                              {"TFLOP/s", "tflops"},
                              {"% of limit", "share_of_limit", 0, 100.0},
                              {"x no gate", "ratio", 2}});
}

}  // namespace

void AddTrainAttentionCommand(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("train-attention", "Gated attention of training on a GPU");
  command->add_option("--lengths", options->lengths, "Tokens of a sequence")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--heads", options->heads, "Sequences times query heads")
      ->capture_default_str();
  command->add_option("--query_heads", options->query_heads, "Of a sequence")
      ->capture_default_str();
  command->add_option("--kv_heads", options->kv_heads, "Of a sequence")->capture_default_str();
  command->add_option("--head_dim", options->head_dim, "64 or 128")->capture_default_str();
  command->add_option("--beta", options->beta, "Sharpness of the gate")->capture_default_str();
  command->add_option("--limit", options->limit, "TFLOP/s of the card, bfloat16, not sparse")
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Measured calls")->capture_default_str();
  command->callback([options, &chosen] { chosen = {[options] { return Run(*options); }, Print}; });
}

}  // namespace eta::bench
