// Gated attention of training on a GPU, against the reference in double precision and against
// golden gradients.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "tests/testing/golden/golden_folder.h"
#include "tests/testing/training/backend_memory.h"
#include "tests/testing/training/gated_attention_case.h"
#include "training/cuda/cuda_backend.h"
#include "training/reference/reference_backend.h"

namespace eta::testing {
namespace {

using training::GateKind;
using training::TrainingBackend;

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

std::vector<GatedAttentionResults> ReferenceOf(const std::vector<GatedAttentionCase>& cases) {
  std::vector<GatedAttentionResults> results(cases.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      const auto reference = training::reference::MakeBackend(DType::kFloat64);
      for (size_t at = next++; at < cases.size(); at = next++) {
        results[at] = RunAttention(*reference, cases[at]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
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

// A later logit far above those of the diagonal tile raises the softmax's reference.
TEST_F(CudaAttention, RisingScoresAreAsTheReference) {
  for (const GateKind kind : {GateKind::kNone, GateKind::kSilu, GateKind::kAdditive}) {
    GatedAttentionCase test;
    test.shape = {.sequences = 1,
                  .length = 400,
                  .num_query_heads = 2,
                  .num_kv_heads = 1,
                  .head_dim = 64,
                  .scale = 0.125f};
    test.gate = {.kind = kind, .beta = 2.0f};
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
