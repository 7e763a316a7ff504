// Attention of training on a GPU, gated, to chosen and to compressed keys, against the reference in
// double precision and against golden gradients.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "tests/testing/golden/golden_folder.h"
#include "tests/testing/training/backend_memory.h"
#include "tests/testing/training/gated_attention_case.h"
#include "tests/testing/training/native_sparse_case.h"
#include "training/cuda/cuda_backend.h"
#include "training/reference/reference_backend.h"

namespace eta::testing {
namespace {

using training::GateKind;
using training::Tensor;
using training::TrainingBackend;
using training::testing::CompressedCase;
using training::testing::Harness;
using training::testing::Numbers;

constexpr double kAttentionTolerance = 1e-2;
// The additive gate multiplies bfloat16's errors of the output by its penalty of 100.
constexpr double kAdditiveTolerance = 3e-2;
// Where one weight is nearly 1, the gradients of scores are differences of nearly equal numbers.
constexpr double kSaturatedTolerance = 3e-2;

class CudaAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    auto backends = training::cuda::MakeBackends(1);
    if (!backends.ok()) GTEST_SKIP() << backends.status();
    cuda_ = std::move(backends->front());
  }

  std::unique_ptr<TrainingBackend> cuda_;
};

// Calls judge(a reference of the thread's own, i) for every i < count.
void WithReferences(size_t count, const std::function<void(TrainingBackend&, size_t)>& judge) {
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      const auto reference = training::reference::MakeBackend(DType::kFloat64);
      for (size_t at = next++; at < count; at = next++) judge(*reference, at);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<GatedAttentionResults> ReferenceOf(const std::vector<GatedAttentionCase>& cases) {
  std::vector<GatedAttentionResults> results(cases.size());
  WithReferences(cases.size(), [&](TrainingBackend& reference, size_t i) {
    results[i] = RunAttention(reference, cases[i]);
  });
  return results;
}

TEST_F(CudaAttention, RaggedCasesAreAsTheReference) {
  const char* count = std::getenv("ETA_CUDA_ATTENTION_CASES");
  std::vector<GatedAttentionCase> cases;
  Random random(31);
  for (int i = 0; i < (count == nullptr ? 200 : std::atoi(count)); ++i) {
    cases.push_back(RandomAttentionCase(random, 300));
  }
  const std::vector<GatedAttentionResults> expected = ReferenceOf(cases);
  for (size_t i = 0; i < cases.size(); ++i) {
    const GatedAttentionResults results = RunAttention(*cuda_, cases[i]);
    ASSERT_TRUE(cuda_->Finish().ok()) << cuda_->Finish();
    const NamedDifference largest = LargestDifference(results, expected[i]);
    EXPECT_LE(largest.difference,
              cases[i].gate.kind == GateKind::kAdditive ? kAdditiveTolerance : kAttentionTolerance)
        << largest.name << " of case " << i << ": " << cases[i].Describe();
  }
}

std::vector<float> RoundedValues(const std::vector<float>& values) {
  HostTensor tensor(1, static_cast<int64_t>(values.size()));
  tensor.data = values;
  return Rounded(tensor, DType::kBFloat16).data;
}

// Windows about tiles and sequences, and blocks of which none, some and all queries of a tile read,
// with runs of unread tiles that are longer than the kernels' rings.
std::vector<GatedAttentionCase> ChosenKeysCases() {
  std::vector<GatedAttentionCase> cases;
  Random random(17);
  Numbers numbers(17);
  for (const int32_t window : {1, 2, 63, 64, 65, 100, 512, 1000}) {
    for (const int32_t length : {1, 31, 64, 130, 650}) {
      GatedAttentionCase test;
      const int32_t head_dim = cases.size() % 3 == 0 ? 128 : 64;
      test.shape = {.sequences = 1,
                    .length = length,
                    .num_query_heads = 2,
                    .num_kv_heads = 1,
                    .head_dim = head_dim,
                    .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
      test.window = window;
      FillAttentionCase(random, test);
      cases.push_back(test);
    }
  }
  for (int i = 0; i < 90; ++i) {
    GatedAttentionCase test = RandomAttentionCase(random, i % 3 == 0 ? 700 : 400);
    test.gate = {};
    if (i % 5 == 0) test.window = numbers.Integer(1, 300);
    test.blocks = training::testing::RandomBlocks(numbers, test.shape);
    if (i % 3 == 0) {
      const auto blocks = static_cast<size_t>(training::KeySelection::Blocks(test.shape.length));
      for (size_t at = 0; at < test.blocks.size(); ++at) {
        const size_t key_block = at / blocks % blocks;
        if (key_block != at % blocks && key_block > 1) test.blocks[at] = 0;
      }
    }
    cases.push_back(test);
  }
  return cases;
}

TEST_F(CudaAttention, ChosenKeysAreAsTheReference) {
  const std::vector<GatedAttentionCase> cases = ChosenKeysCases();
  const std::vector<GatedAttentionResults> expected = ReferenceOf(cases);
  for (size_t i = 0; i < cases.size(); ++i) {
    const GatedAttentionResults results = RunAttention(*cuda_, cases[i]);
    ASSERT_TRUE(cuda_->Finish().ok()) << cuda_->Finish();
    const NamedDifference largest = LargestDifference(results, expected[i]);
    EXPECT_LE(largest.difference, kAttentionTolerance)
        << largest.name << " of case " << i << ": " << cases[i].Describe();
    EXPECT_TRUE(RunAttention(*cuda_, cases[i]) == results) << "other bits: case " << i;
  }
}

// A later logit far above those of the diagonal tile raises the softmax's reference. Where keys are
// chosen, it is that of some queries of a tile alone.
TEST_F(CudaAttention, RisingScoresAreAsTheReference) {
  const std::pair<GateKind, bool> kinds[] = {{GateKind::kNone, false},
                                             {GateKind::kNone, true},
                                             {GateKind::kSilu, false},
                                             {GateKind::kAdditive, false}};
  for (const auto& [kind, chosen] : kinds) {
    GatedAttentionCase test;
    test.shape = {.sequences = 1,
                  .length = 400,
                  .num_query_heads = 2,
                  .num_kv_heads = 1,
                  .head_dim = 64,
                  .scale = 0.125f};
    test.gate = {.kind = kind, .beta = 2.0f};
    if (chosen) {
      // Blocks of 64 tokens, 7 by 7. Of the second one every other query reads.
      test.blocks.assign(49, ~uint64_t{0});
      for (size_t c = 2; c < 7; ++c) test.blocks[7 + c] = 0x5555555555555555;
    }
    Random random(7);
    FillAttentionCase(random, test);
    // Keys 3 and 70 along some queries, with scores in the hundreds.
    for (const int key : {3, 70}) {
      for (size_t i = 0; i < 64; ++i) {
        test.k[static_cast<size_t>(key) * 64 + i] =
            16.0f * static_cast<float>(key) / 70.0f * test.q[300 * 128 + i];
      }
    }
    test.k = RoundedValues(test.k);
    const std::vector<GatedAttentionResults> expected = ReferenceOf({test});
    const GatedAttentionResults results = RunAttention(*cuda_, test);
    ASSERT_TRUE(cuda_->Finish().ok());
    const NamedDifference largest = LargestDifference(results, expected[0]);
    EXPECT_LE(largest.difference, kSaturatedTolerance) << largest.name << " of " << test.Describe();
    EXPECT_LE(Difference(results.out, expected[0].out, 0.0), kAttentionTolerance)
        << test.Describe();
  }
}

TEST_F(CudaAttention, SameBitsEveryTime) {
  Random random(5);
  GatedAttentionCase test;
  test.shape = {.sequences = 3,
                .length = 1500,
                .num_query_heads = 6,
                .num_kv_heads = 2,
                .head_dim = 64,
                .scale = 0.125f};
  test.gate = {.kind = GateKind::kSilu, .beta = 5.0f, .strength = 1.0f, .group_blocks = true};
  FillAttentionCase(random, test);
  const GatedAttentionResults first = RunAttention(*cuda_, test);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(RunAttention(*cuda_, test) == first) << "run " << i;
}

TEST_F(CudaAttention, RefusesOtherHeads) {
  GatedAttentionCase test;
  test.shape = {.sequences = 1,
                .length = 8,
                .num_query_heads = 1,
                .num_kv_heads = 1,
                .head_dim = 96,
                .scale = 0.1f};
  Random random(5);
  FillAttentionCase(random, test);
  RunAttention(*cuda_, test);
  EXPECT_EQ(cuda_->Finish().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(cuda_->Finish().ok());
}

TEST_F(CudaAttention, RefusesChosenKeysWithAGate) {
  Random random(5);
  GatedAttentionCase test = RandomAttentionCase(random, 100);
  test.gate = {.kind = GateKind::kSilu, .beta = 2.0f};
  test.gate_sums = test.block_sums = false;
  test.window = 10;
  RunAttention(*cuda_, test);
  EXPECT_EQ(cuda_->Finish().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CudaAttention, CompressedKeysAreAsTheReference) {
  struct Run {
    CompressedCase test;
    training::testing::Results results;
    std::vector<uint64_t> selected;
    training::testing::Results expected;
    double choice_error = 0.0;
  };
  std::vector<Run> runs;
  bool chose = false;
  for (uint64_t seed = 0; seed < 32; ++seed) {
    Run run = {.test = training::testing::RandomCompressedCase(seed, {64, 128}, 1400)};
    std::vector<uint64_t> again;
    for (std::vector<uint64_t>* selected : {&run.selected, &again}) {
      Harness harness(*cuda_, DType::kBFloat16);
      training::testing::Results results =
          RunCompressedAttention(run.test, harness, true, selected);
      ASSERT_TRUE(cuda_->Finish().ok()) << cuda_->Finish();
      for (size_t i = 0; i < run.results.size(); ++i) {
        EXPECT_EQ(results[i].values, run.results[i].values) << "other bits: " << seed;
      }
      run.results = std::move(results);
    }
    EXPECT_EQ(run.selected, again) << seed;
    chose |= run.test.shape.length > (training::kSelectedBlocks + 1) * training::kRegulariserBlock;
    runs.push_back(std::move(run));
  }
  EXPECT_TRUE(chose);
  WithReferences(runs.size(), [&](TrainingBackend& reference, size_t i) {
    Run& run = runs[i];
    Harness harness(reference, DType::kBFloat16);
    run.expected = RunCompressedAttention(run.test, harness);
    run.choice_error = ChoiceError(run.test, run.selected, DType::kBFloat16);
  });
  for (const Run& run : runs) {
    EXPECT_LE(run.choice_error, 1e-4) << run.test.Describe();
    ASSERT_EQ(run.results.size(), run.expected.size());
    for (size_t i = 0; i < run.results.size(); ++i) {
      EXPECT_LE(
          training::testing::RelativeError(run.results[i].values, run.expected[i].values, 0.1),
          kAttentionTolerance)
          << run.results[i].name << ": " << run.test.Describe();
    }
  }
}

// What compressed attention makes of the heads of one KV head.
struct CompressedOutputs {
  Tensor out;
  float* lse;
  Tensor grad_q;
  Tensor grad_k;
  Tensor grad_v;
};

// A long sequence's rows are cut in parts where several heads share keys, and not where each head
// is alone.
TEST_F(CudaAttention, PartsOfCompressedKeysAreTheWhole) {
  constexpr int32_t kHeads = 4;
  constexpr int32_t kLength = 32768;
  constexpr int64_t kKeys = training::CompressedCount(kLength);
  constexpr int64_t kBlocks = training::KeySelection::Blocks(kLength);
  Random random(3);
  BackendMemory memory(*cuda_);
  const auto normals = [&](int64_t rows, int64_t cols) {
    return memory.Activations(Normal(random, 1, rows * cols, 1.0f).data, rows, cols);
  };
  const Tensor q = normals(kLength, kHeads * 64);
  const Tensor grad_out = normals(kLength, kHeads * 64);
  const Tensor k = normals(kKeys, 64);
  const Tensor v = normals(kKeys, 64);
  auto* selected =
      reinterpret_cast<uint64_t*>(memory.Allocate(kBlocks * kBlocks * sizeof(uint64_t)));
  const auto run = [&](int32_t first_head, int32_t heads) {
    const DType dtype = cuda_->activation_dtype();
    const auto of_heads = [&](const Tensor& x) { return x.Columns(first_head * 64, heads * 64); };
    CompressedOutputs outputs = {.out = memory.Matrix(dtype, kLength, heads * 64),
                                 .lse = memory.Floats(int64_t{heads} * kLength, 1.0f),
                                 .grad_q = memory.Matrix(dtype, kLength, heads * 64),
                                 .grad_k = memory.Matrix(dtype, kKeys, 64),
                                 .grad_v = memory.Matrix(dtype, kKeys, 64)};
    const training::CompressedAttentionParams forward = {.shape = {.sequences = 1,
                                                                   .length = kLength,
                                                                   .num_query_heads = heads,
                                                                   .num_kv_heads = 1,
                                                                   .head_dim = 64,
                                                                   .scale = 0.125f},
                                                         .q = of_heads(q),
                                                         .k = k,
                                                         .v = v,
                                                         .out = outputs.out,
                                                         .lse = outputs.lse,
                                                         .selected = selected};
    cuda_->CompressedAttention(forward);
    cuda_->CompressedAttentionBackward({.forward = forward,
                                        .grad_out = of_heads(grad_out),
                                        .grad_q = outputs.grad_q,
                                        .grad_k = outputs.grad_k,
                                        .grad_v = outputs.grad_v});
    return outputs;
  };
  const CompressedOutputs whole = run(0, kHeads);
  const auto expect = [](const std::vector<double>& values, const std::vector<double>& expected,
                         const char* what, int32_t head) {
    EXPECT_LE(Difference(values, expected, 0.0), kAttentionTolerance) << what << " " << head;
  };
  std::vector<double> grad_k(static_cast<size_t>(kKeys * 64));
  std::vector<double> grad_v(grad_k.size());
  for (int32_t head = 0; head < kHeads; ++head) {
    const CompressedOutputs alone = run(head, 1);
    expect(memory.Read(whole.out.Columns(head * 64, 64)), memory.Read(alone.out), "out", head);
    expect(memory.Read(whole.grad_q.Columns(head * 64, 64)), memory.Read(alone.grad_q), "dq", head);
    // The first rows see no key.
    const int64_t seen = training::kCompressedWindow - 1;
    expect(memory.Read(whole.lse + head * kLength + seen, kLength - seen),
           memory.Read(alone.lse + seen, kLength - seen), "lse", head);
    const std::vector<double> k_part = memory.Read(alone.grad_k);
    const std::vector<double> v_part = memory.Read(alone.grad_v);
    for (size_t i = 0; i < grad_k.size(); ++i) {
      grad_k[i] += k_part[i];
      grad_v[i] += v_part[i];
    }
  }
  expect(memory.Read(whole.grad_k), grad_k, "dk", kHeads);
  expect(memory.Read(whole.grad_v), grad_v, "dv", kHeads);
  ASSERT_TRUE(cuda_->Finish().ok()) << cuda_->Finish();
}

TEST_F(CudaAttention, RefusesLongerSequencesOfCompressedKeys) {
  CompressedCase test;
  test.shape = {
      .sequences = 1, .length = 32769, .num_query_heads = 1, .num_kv_heads = 1, .head_dim = 64};
  Numbers numbers(1);
  Harness harness(*cuda_);
  RunCompressedAttention(MakeCompressedCase(numbers, test.shape), harness);
  EXPECT_EQ(cuda_->Finish().code(), absl::StatusCode::kInvalidArgument);
}

// Golden files have [H, T, d] in float32, which is rounded to bfloat16 here.
std::vector<float> ByToken(const std::vector<float>& values, int64_t heads, int64_t tokens) {
  std::vector<float> out(values.size());
  const auto d = static_cast<int64_t>(values.size()) / (heads * tokens);
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    const int64_t head = i / (tokens * d);
    const int64_t token = i / d % tokens;
    out[static_cast<size_t>((token * heads + head) * d + i % d)] = values[static_cast<size_t>(i)];
  }
  return out;
}

class CudaGoldenGradients : public CudaAttention,
                            public ::testing::WithParamInterface<const char*> {};

TEST_P(CudaGoldenGradients, AreMet) {
  const absl::StatusOr<SafetensorsFile> file =
      SafetensorsFile::Open(GoldenFolder("gradients", "ETA_GOLDEN_GRADIENTS_DIR") + "/gradients-" +
                            GetParam() + ".safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<int64_t>& q_shape = file->tensors().at("q").shape;
  const int64_t heads = q_shape[0];
  const int64_t tokens = q_shape[1];
  const int64_t kv_heads = file->tensors().at("k").shape[0];
  const auto read = [&](const std::string& name, int64_t of_heads) {
    const std::vector<std::byte> bytes = *file->Read(name);
    const bool wide = file->tensors().at(name).dtype == DType::kFloat64;
    std::vector<float> values(bytes.size() / (wide ? 8 : 4));
    for (size_t i = 0; i < values.size(); ++i) {
      double value = 0.0;
      if (wide) {
        std::memcpy(&value, bytes.data() + i * 8, 8);
      } else {
        value = LoadElement(DType::kFloat32, bytes.data(), static_cast<int64_t>(i));
      }
      values[i] = static_cast<float>(value);
    }
    return of_heads == 0 ? values : ByToken(values, of_heads, tokens);
  };
  const auto rounded = [&](const std::string& name, int64_t of_heads) {
    return RoundedValues(read(name, of_heads));
  };
  GatedAttentionCase test;
  test.shape = {.sequences = 1,
                .length = static_cast<int32_t>(tokens),
                .num_query_heads = static_cast<int32_t>(heads),
                .num_kv_heads = static_cast<int32_t>(kv_heads),
                .head_dim = static_cast<int32_t>(q_shape[2])};
  test.shape.scale = 1.0f / std::sqrt(static_cast<float>(test.shape.head_dim));
  test.gate = {.kind = GateKind::kSilu, .beta = std::stof(file->metadata().at("beta"))};
  test.block_sums = false;
  test.q = rounded("q", heads);
  test.k = rounded("k", kv_heads);
  test.v = rounded("v", kv_heads);
  test.grad_out = rounded("grad_out", heads);
  test.tau = read("tau", heads);
  test.grad_gate_sum = read("grad_gate_sum", 0);
  if (test.shape.head_dim != 64 && test.shape.head_dim != 128) GTEST_SKIP() << "head_dim";
  const GatedAttentionResults results = RunAttention(*cuda_, test);
  ASSERT_TRUE(cuda_->Finish().ok());
  const auto expect = [&](const std::vector<double>& values, const std::string& name,
                          int64_t of_heads) {
    const std::vector<float> golden = read(name, of_heads);
    const double difference = Difference(values, {golden.begin(), golden.end()}, 0.0);
    EXPECT_LE(difference, kAttentionTolerance) << name;
    RecordProperty(name, std::to_string(difference));
  };
  expect(results.out, "out", heads);
  expect(results.gate_sum, "gate_sum", 0);
  expect(results.grad_q, "dq", heads);
  expect(results.grad_k, "dk", kv_heads);
  expect(results.grad_v, "dv", kv_heads);
  expect(results.grad_tau, "dtau", heads);
}

INSTANTIATE_TEST_SUITE_P(Files, CudaGoldenGradients,
                         ::testing::Values("small", "gqa", "start_dense"));

}  // namespace
}  // namespace eta::testing
