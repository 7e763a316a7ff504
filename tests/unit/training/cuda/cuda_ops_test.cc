// The ops of training on a GPU, attention apart, against the reference in double precision: the
// same inputs, which bfloat16 holds, on ragged shapes.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/kernels/kernel_harness.h"
#include "tests/testing/training/backend_memory.h"
#include "tests/testing/training/native_sparse_case.h"
#include "training/cuda/cuda_backend.h"
#include "training/reference/reference_backend.h"

namespace eta::testing {
namespace {

using training::Tensor;
using training::TrainingBackend;

constexpr double kTolerance = 1e-2;
constexpr double kFloatTolerance = 1e-5;

using Values = std::vector<float>;
using Results = std::vector<std::vector<double>>;
// Runs ops on a backend and reads what they wrote.
using Calls = std::function<Results(TrainingBackend&, BackendMemory&)>;

class CudaOps : public ::testing::Test {
 protected:
  void SetUp() override {
    auto backends = training::cuda::MakeBackends(1);
    if (!backends.ok()) GTEST_SKIP() << backends.status();
    cuda_ = std::move(backends->front());
    reference_ = training::reference::MakeBackend(DType::kFloat64);
  }

  Values Normals(int64_t count, float deviation = 1.0f) {
    return Rounded(Normal(random_, 1, count, deviation), DType::kBFloat16).data;
  }

  // Both backends' results, and the same bits when CUDA does it again.
  void Compare(const Calls& run, double tolerance = kTolerance) {
    BackendMemory expected_memory(*reference_);
    const Results expected = run(*reference_, expected_memory);
    Results results;
    for (int i = 0; i < 2; ++i) {
      BackendMemory memory(*cuda_);
      Results again = run(*cuda_, memory);
      ASSERT_TRUE(cuda_->Finish().ok()) << cuda_->Finish();
      if (i == 1) {
        EXPECT_TRUE(again == results) << "other bits";
      }
      results = std::move(again);
    }
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_LE(Difference(results[i], expected[i], 0.0), tolerance) << "result " << i;
    }
  }

  // Likewise a case that tests of all backends share.
  void CompareCase(
      const std::string& which,
      const std::function<training::testing::Results(training::testing::Harness&)>& run) {
    training::testing::Harness expected_harness(*reference_, DType::kBFloat16);
    const training::testing::Results expected = run(expected_harness);
    training::testing::Results results;
    for (int i = 0; i < 2; ++i) {
      training::testing::Harness harness(*cuda_, DType::kBFloat16);
      training::testing::Results again = run(harness);
      ASSERT_TRUE(cuda_->Finish().ok()) << cuda_->Finish();
      for (size_t at = 0; at < results.size(); ++at) {
        EXPECT_EQ(again[at].values, results[at].values) << "other bits: " << which;
      }
      results = std::move(again);
    }
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_LE(training::testing::RelativeError(results[i].values, expected[i].values), kTolerance)
          << results[i].name << " of " << which;
    }
  }

  std::unique_ptr<TrainingBackend> cuda_;
  std::unique_ptr<TrainingBackend> reference_;
  Random random_{11};
};

struct Size {
  int64_t rows;
  int64_t cols;
};
constexpr Size kSizes[] = {{1, 64}, {3, 72}, {37, 192}, {300, 576}, {1025, 384}, {17, 70}};

TEST_F(CudaOps, RmsNorm) {
  for (const auto [rows, cols] : kSizes) {
    const Values x = Normals(rows * cols);
    const Values weight = Normals(cols);
    const Values grad = Normals(rows * cols);
    Compare([&](TrainingBackend& backend, BackendMemory& memory) {
      const Tensor input = memory.Residual(x, rows, cols);
      const float* w = memory.Floats(weight);
      const Tensor out = memory.Matrix(backend.activation_dtype(), rows, cols);
      float* inverse = memory.Floats(rows, 0.0f);
      backend.RmsNorm({input, w, 1e-5f, out, inverse});
      const Tensor grad_x = memory.Residual(x, rows, cols);
      float* grad_weight = memory.Floats(cols, 1.0f);
      backend.RmsNormBackward(
          {input, w, inverse, memory.Activations(grad, rows, cols), grad_x, grad_weight});
      return Results{memory.Read(out), memory.Read(inverse, rows), memory.Read(grad_x),
                     memory.Read(grad_weight, cols)};
    });
  }
}

TEST_F(CudaOps, NormHeads) {
  for (const auto& [heads, head_dim] : {std::pair{3, 64}, {2, 128}}) {
    constexpr int64_t kRows = 130;
    const int64_t q_cols = int64_t{heads} * head_dim;
    const Values q = Normals(kRows * q_cols);
    const Values k = Normals(kRows * head_dim);
    const Values weight = Normals(head_dim);
    const Values grad = Normals(kRows * q_cols);
    Compare([&, d = head_dim](TrainingBackend& backend, BackendMemory& memory) {
      const DType dtype = backend.activation_dtype();
      const Tensor beside = memory.Matrix(dtype, kRows, q_cols + d);
      memory.Write(beside.Columns(0, q_cols), q);
      memory.Write(beside.Columns(q_cols, d), k);
      const float* w = memory.Floats(weight);
      const training::NormHeadsParams forward = {.q = beside.Columns(0, q_cols),
                                                 .k = beside.Columns(q_cols, d),
                                                 .q_weight = w,
                                                 .k_weight = w,
                                                 .head_dim = d,
                                                 .eps = 1e-6f,
                                                 .q_out = memory.Matrix(dtype, kRows, q_cols),
                                                 .k_out = memory.Matrix(dtype, kRows, d),
                                                 .q_inverse_rms = memory.Floats(kRows * 8, 0.0f),
                                                 .k_inverse_rms = memory.Floats(kRows, 0.0f)};
      backend.NormHeads(forward);
      const Tensor grad_q = memory.Activations(grad, kRows, q_cols);
      const Tensor grad_k = memory.Activations(grad, kRows, d);
      float* grad_weights = memory.Floats(2 * d, 0.5f);
      backend.NormHeadsBackward({forward, grad_q, grad_k, grad_weights, grad_weights + d});
      return Results{memory.Read(forward.q_out), memory.Read(forward.k_out), memory.Read(grad_q),
                     memory.Read(grad_k), memory.Read(grad_weights, 2 * d)};
    });
  }
}

TEST_F(CudaOps, Products) {
  for (const auto& [rows, inner, cols] :
       {std::array<int64_t, 3>{1, 64, 64}, {300, 576, 192}, {1000, 192, 1536}, {130, 64, 8}}) {
    const Values x = Normals(rows * inner);
    const Values weight = Normals(cols * inner);
    const Values grad = Normals(rows * cols);
    Compare([&](TrainingBackend& backend, BackendMemory& memory) {
      const Tensor input = memory.Activations(x, rows, inner);
      const Tensor w = memory.Activations(weight, cols, inner);
      const Tensor grad_out = memory.Activations(grad, rows, cols);
      const Tensor out = memory.Matrix(backend.activation_dtype(), rows, cols);
      const Tensor sum = memory.Residual(grad, rows, cols);
      const Tensor grad_x = memory.Matrix(backend.activation_dtype(), rows, inner);
      float* grad_weight = memory.Floats(cols * inner, 2.0f);
      backend.MatMul({input, w, out, false});
      backend.MatMul({input, w, sum, true});
      backend.MatMulInput({grad_out, w, grad_x});
      backend.MatMulWeight({grad_out, input, grad_weight});
      return Results{memory.Read(out), memory.Read(sum), memory.Read(grad_x),
                     memory.Read(grad_weight, cols * inner)};
    });
  }
}

TEST_F(CudaOps, Biases) {
  for (const auto [rows, cols] : kSizes) {
    const Values x = Normals(rows * cols);
    const Values bias = Normals(cols);
    Compare([&](TrainingBackend& backend, BackendMemory& memory) {
      const Tensor activations = memory.Activations(x, rows, cols);
      const Tensor residual = memory.Residual(x, rows, cols);
      const float* b = memory.Floats(bias);
      float* grad_bias = memory.Floats(cols, 1.0f);
      backend.BiasBackward({activations, grad_bias});
      backend.BiasBackward({residual, grad_bias});
      backend.AddBias({activations, b});
      backend.AddBias({residual, b});
      return Results{memory.Read(activations), memory.Read(residual), memory.Read(grad_bias, cols)};
    });
  }
}

TEST_F(CudaOps, Rope) {
  RopeScaling yarn;
  yarn.type = RopeScalingType::kYarn;
  yarn.factor = 4.0;
  yarn.original_context = 64;
  yarn.ramp_begin = 3.0;
  yarn.ramp_end = 20.0;
  yarn.attention_factor = 1.2;
  for (const RopeScaling& scaling : {RopeScaling{}, yarn}) {
    for (const bool inverse : {false, true}) {
      constexpr int64_t kRows = 2 * 301;
      const Values q = Normals(kRows * 192);
      const Values k = Normals(kRows * 64);
      Compare([&](TrainingBackend& backend, BackendMemory& memory) {
        const Tensor queries = memory.Activations(q, kRows, 192);
        const Tensor keys = memory.Activations(k, kRows, 64);
        backend.Rope({queries, keys, 64, 301, 10000.0, scaling, inverse});
        const Tensor windows = memory.Activations(k, kRows, 64);
        backend.Rope({.q = {},
                      .k = windows,
                      .head_dim = 64,
                      .length = 301,
                      .theta = 10000.0,
                      .scaling = scaling,
                      .inverse = inverse,
                      .first = 15,
                      .stride = 16});
        return Results{memory.Read(queries), memory.Read(keys), memory.Read(windows)};
      });
    }
  }
}

TEST_F(CudaOps, Thresholds) {
  for (const auto& [rows, heads] : {std::pair<int64_t, int32_t>{1, 1}, {257, 9}, {600, 32}}) {
    const int64_t cols = int64_t{heads} * 64;
    const Values q = Normals(rows * cols);
    // float32, which bfloat16 does not hold.
    const Values weight = Normal(random_, 1, heads * cols, 0.02f).data;
    const Values bias = Normal(random_, 1, heads, 1.0f).data;
    const Values grad = Normal(random_, 1, rows * heads, 1.0f).data;
    for (const bool predicted : {true, false}) {
      Compare([&, count = heads](TrainingBackend& backend, BackendMemory& memory) {
        const Tensor queries = memory.Activations(q, rows, cols);
        const float* w = predicted ? memory.Floats(weight) : nullptr;
        float* tau = memory.Floats(rows * count, 0.0f);
        const Tensor grad_q = memory.Activations(q, rows, cols);
        float* grad_weight = memory.Floats(count * cols, 0.0f);
        float* grad_bias = memory.Floats(count, 1.0f);
        backend.PredictThresholds({count, queries, w, memory.Floats(bias), tau});
        backend.ThresholdsBackward(
            {count, queries, w, memory.Floats(grad), grad_q, grad_weight, grad_bias});
        return Results{memory.Read(tau, rows * count), memory.Read(grad_q),
                       memory.Read(grad_weight, predicted ? count * cols : 0),
                       memory.Read(grad_bias, count)};
      });
    }
    // The threshold itself has float32's precision.
    Compare(
        [&, count = heads](TrainingBackend& backend, BackendMemory& memory) {
          float* tau = memory.Floats(rows * count, 0.0f);
          backend.PredictThresholds({count, memory.Activations(q, rows, cols),
                                     memory.Floats(weight), memory.Floats(bias), tau});
          return Results{memory.Read(tau, rows * count)};
        },
        kFloatTolerance);
  }
}

TEST_F(CudaOps, SwiGlu) {
  for (const auto [rows, cols] : kSizes) {
    const Values gate_up = Normals(rows * 2 * cols);
    const Values grad = Normals(rows * cols);
    Compare([&](TrainingBackend& backend, BackendMemory& memory) {
      const Tensor input = memory.Activations(gate_up, rows, 2 * cols);
      const Tensor out = memory.Matrix(backend.activation_dtype(), rows, cols);
      backend.SwiGlu({input, out});
      backend.SwiGluBackward({input, memory.Activations(grad, rows, cols), input});
      return Results{memory.Read(out), memory.Read(input)};
    });
  }
}

TEST_F(CudaOps, Embeddings) {
  constexpr int64_t kVocab = 50;
  for (const auto [rows, cols] : kSizes) {
    const Values table = Normals(kVocab * cols);
    const Values grad = Normals(rows * cols);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < rows; ++i) {
      tokens.push_back(static_cast<int32_t>(Uniform(random_, 0, kVocab - 1)));
    }
    Compare([&](TrainingBackend& backend, BackendMemory& memory) {
      const Tensor out = memory.Matrix(backend.residual_dtype(), rows, cols);
      float* grad_table = memory.Floats(kVocab * cols, 1.0f);
      backend.Embed({tokens, memory.Activations(table, kVocab, cols), out});
      backend.EmbedBackward({tokens, memory.Residual(grad, rows, cols), grad_table});
      return Results{memory.Read(out), memory.Read(grad_table, kVocab * cols)};
    });
  }
}

TEST_F(CudaOps, HeadLoss) {
  for (const int64_t vocab : {1000, 333}) {
    for (const bool teaches : {false, true}) {
      constexpr int64_t kRows = 70;
      const Values hidden = Normals(kRows * 64);
      const Values head = Normals(vocab * 64, 0.3f);
      const Values teacher_hidden = Normals(kRows * 128);
      const Values teacher_head = Normals(vocab * 128, 0.2f);
      std::vector<int32_t> targets;
      for (int64_t i = 0; i < kRows; ++i) {
        targets.push_back(i % 7 == 3 ? -1 : static_cast<int32_t>(Uniform(random_, 0, vocab - 1)));
      }
      const Values ce_weights = Normal(random_, 1, kRows, 1.0f).data;
      const Values kl_weights = Normal(random_, 1, kRows, 1.0f).data;
      Compare([&](TrainingBackend& backend, BackendMemory& memory) {
        training::HeadLossParams params = {};
        params.hidden = memory.Activations(hidden, kRows, 64);
        params.head = memory.Activations(head, vocab, 64);
        params.targets = targets;
        params.ce_weights = ce_weights;
        params.cross_entropy = memory.Floats(kRows, -1.0f);
        if (teaches) {
          params.teacher_hidden = memory.Activations(teacher_hidden, kRows, 128);
          params.teacher_head = memory.Activations(teacher_head, vocab, 128);
          params.kl_weights = kl_weights;
          params.divergence = memory.Floats(kRows, -1.0f);
        }
        params.grad_hidden = memory.Matrix(backend.activation_dtype(), kRows, 64);
        params.grad_head = memory.Floats(vocab * 64, 0.0f);
        backend.HeadLoss(params);
        Results results = {memory.Read(params.cross_entropy, kRows),
                           memory.Read(params.grad_hidden),
                           memory.Read(params.grad_head, vocab * 64)};
        if (teaches) results.push_back(memory.Read(params.divergence, kRows));
        return results;
      });
    }
  }
}

// Logits are whole numbers, many of them equal.
TEST_F(CudaOps, Hits) {
  for (const int64_t vocab : {8, 40, 1203}) {
    constexpr int64_t kRows = 300;
    constexpr int64_t kWidth = 64;
    const auto whole = [&](int64_t rows) {
      Values values(static_cast<size_t>(rows * kWidth), 0.0f);
      for (size_t i = 0; i < values.size(); ++i) {
        if (i % kWidth < 2) values[i] = static_cast<float>(Uniform(random_, 0, 4)) - 2.0f;
      }
      return values;
    };
    const Values hidden = whole(kRows);
    const Values head = whole(vocab);
    std::vector<int32_t> targets;
    for (int64_t i = 0; i < kRows; ++i) {
      targets.push_back(
          static_cast<int32_t>(Uniform(random_, -1, std::min<int64_t>(vocab, 20) - 1)));
    }
    const Values weights(kRows, 1.0f);
    for (const bool grads : {false, true}) {
      Compare(
          [&](TrainingBackend& backend, BackendMemory& memory) {
            training::HeadLossParams params = {};
            params.hidden = memory.Activations(hidden, kRows, kWidth);
            params.head = memory.Activations(head, vocab, kWidth);
            params.targets = targets;
            params.ce_weights = weights;
            params.cross_entropy = memory.Floats(kRows, -1.0f);
            if (grads) {
              params.grad_hidden = memory.Matrix(backend.activation_dtype(), kRows, kWidth);
              params.grad_head = memory.Floats(vocab * kWidth, 0.0f);
            }
            params.hit = memory.Floats(kRows, -1.0f);
            backend.HeadLoss(params);
            return Results{memory.Read(params.hit, kRows)};
          },
          0.0);
    }
  }
}

TEST_F(CudaOps, Windows) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto test = training::testing::RandomWindowsCase(seed, {3, 64, 128}, 300);
    CompareCase("seed " + std::to_string(seed), [&](training::testing::Harness& harness) {
      return RunGatherWindows(test, harness);
    });
  }
}

TEST_F(CudaOps, Branches) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto test = training::testing::RandomBranchesCase(seed, {3, 64, 128}, 200);
    CompareCase("seed " + std::to_string(seed),
                [&](training::testing::Harness& harness) { return RunMixBranches(test, harness); });
  }
}

TEST_F(CudaOps, Add) {
  for (const auto [rows, cols] : kSizes) {
    const Values from = Normals(rows * cols);
    const Values to = Normals(rows * cols);
    Compare([&](TrainingBackend& backend, BackendMemory& memory) {
      const Tensor sum = memory.Activations(to, rows, cols);
      backend.Add({memory.Activations(from, rows, cols), sum});
      return Results{memory.Read(sum)};
    });
  }
}

TEST_F(CudaOps, Optimizer) {
  for (const int64_t count : {1, 1000, 100'003}) {
    const Values values = Normal(random_, 1, count, 1.0f).data;
    const Values gradients = Normal(random_, 1, count, 1.0f).data;
    Values second = Normal(random_, 1, count, 1.0f).data;
    for (float& value : second) value *= value;
    Compare(
        [&](TrainingBackend& backend, BackendMemory& memory) {
          training::AdamWParams params = {.values = memory.Floats(values),
                                          .gradients = memory.Floats(gradients),
                                          .first = memory.Floats(gradients),
                                          .second = memory.Floats(second),
                                          .rounded = nullptr,
                                          .count = count,
                                          .step = 3,
                                          .rate = 1e-2f,
                                          .beta1 = 0.9f,
                                          .beta2 = 0.95f,
                                          .epsilon = 1e-8f,
                                          .weight_decay = 0.1f,
                                          .gradient_scale = 0.5f};
          backend.AdamW(params);
          float* sums = memory.Floats(1, 0.5f);
          backend.WeighRowSums({.x = params.values,
                                .sequences = 1,
                                .heads = 1,
                                .length = static_cast<int32_t>(count),
                                .weights = memory.Floats(second),
                                .out = sums});
          return Results{memory.Read(params.values, count),
                         memory.Read(params.first, count),
                         memory.Read(params.second, count),
                         {backend.SumSquares(params.gradients, count)}};
        },
        kFloatTolerance);
  }
}

// Needs two devices and NCCL.
TEST(CudaDevices, AllReduceSumsOverTwo) {
  auto made = training::cuda::MakeBackends(2);
  if (!made.ok()) GTEST_SKIP() << made.status();
  constexpr int64_t kCount = 100'001;
  std::vector<std::vector<double>> results(2);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      TrainingBackend& backend = *(*made)[rank];
      EXPECT_EQ(backend.rank(), static_cast<int>(rank));
      EXPECT_EQ(backend.world_size(), 2);
      BackendMemory memory(backend);
      Random random(rank);
      float* values = memory.Floats(Normal(random, 1, kCount).data);
      for (int i = 0; i < 3; ++i) backend.AllReduce(values, kCount);
      results[rank] = memory.Read(values, kCount);
      EXPECT_TRUE(backend.Finish().ok());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_TRUE(results[0] == results[1]);
  Random first(0);
  Random second(1);
  const Values a = Normal(first, 1, kCount).data;
  const Values b = Normal(second, 1, kCount).data;
  for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(results[0][i], 4.0 * (a[i] + b[i]), 1e-4);
}

TEST_F(CudaOps, MoreDevicesThanThereAreAreRefused) {
  EXPECT_EQ(training::cuda::MakeBackends(1000).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace eta::testing
