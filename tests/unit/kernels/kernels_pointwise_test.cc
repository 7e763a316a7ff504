// RMSNorm, biases, RoPE, the threshold predictor, SwiGLU and the cache's geometry against the
// reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/params/layer.h"
#include "kernels/rope_scaling.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

using ::testing::ValuesIn;

class PointwiseOn : public ::testing::TestWithParam<BackendUnderTest> {
 protected:
  PointwiseOn() : device(GetParam()) {}

  void SetUp() override {
    if (!WhyMissing(GetParam()).empty()) GTEST_SKIP() << WhyMissing(GetParam());
  }

  void Plan(Device& on, const std::vector<SequenceRows>& rows) {
    on->Plan({{tokens_.data(), static_cast<size_t>(rows.back().row_begin + rows.back().num_rows)},
              rows});
  }

  void ExpectRowsNear(const HostTensor& got, const HostTensor& want, double tolerance) {
    ASSERT_EQ(got.rows, want.rows);
    for (int64_t r = 0; r < want.rows; ++r) {
      EXPECT_LT(RelativeError(got.row(r), want.row(r), want.cols), tolerance) << "row " << r;
    }
  }

  Device judge{{"reference"}};
  Device device;

 private:
  std::vector<int32_t> tokens_ = std::vector<int32_t>(100, 0);
};

TEST_P(PointwiseOn, RmsNormMatchesTheReferenceForAllRowsAndForSome) {
  Random random(21);
  const std::vector<int32_t> some = {4, 0, 8};
  for (const int64_t width : {1, 31, 64, 500, 768}) {
    const HostTensor x = Normal(random, 9, width, 3.0f);
    const HostTensor weight = Normal(random, 1, width);
    for (const std::vector<int32_t>& rows : {std::vector<int32_t>{}, some}) {
      HostTensor results[2];
      for (int i = 0; i < 2; ++i) {
        Device& on = i == 0 ? judge : device;
        const TensorView out = on.Empty(rows.empty() ? 9 : 3, width, 2, on.activation_dtype());
        Plan(on, {{.num_rows = 9}});
        on->RmsNorm({.x = on.Put(x, 3),
                     .weight = on.Put(weight.data),
                     .eps = 1e-5f,
                     .rows = rows,
                     .out = out});
        EXPECT_TRUE(on->Finish().ok());
        results[i] = on.Get(out);
      }
      ExpectRowsNear(results[1], results[0], 1e-6 + RoundingError(device.activation_dtype()));
    }
  }
}

TEST_P(PointwiseOn, RmsNormMayAddToWhatIsThere) {
  Random random(29);
  for (const int64_t width : {1, 31, 64, 500, 768, 5000}) {
    const HostTensor x = Normal(random, 9, width, 3.0f);
    const HostTensor weight = Normal(random, 1, width);
    const HostTensor before = Normal(random, 9, width, 0.5f);
    HostTensor results[2];
    for (int i = 0; i < 2; ++i) {
      Device& on = i == 0 ? judge : device;
      const TensorView out = on.Put(before, 2);
      Plan(on, {{.num_rows = 9}});
      on->RmsNorm({.x = on.Put(x, 3),
                   .weight = on.Put(weight.data),
                   .eps = 1e-5f,
                   .rows = {},
                   .out = out,
                   .add = true});
      EXPECT_TRUE(on->Finish().ok());
      results[i] = on.Get(out);
    }
    ExpectRowsNear(results[1], results[0], 1e-6);
    const double scale =
        1.0 / std::sqrt(Norm(x.row(4), width) * Norm(x.row(4), width) / static_cast<double>(width) +
                        1e-5);
    EXPECT_NEAR(results[1].row(4)[0], before.row(4)[0] + x.row(4)[0] * scale * weight.data[0],
                1e-5);
  }
}

TEST_P(PointwiseOn, RmsNormOfARowDoesNotFeelItsBatch) {
  Random random(22);
  const HostTensor x = Normal(random, 40, 96);
  const TensorView in = device.Put(x);
  const float* weight = device.Put(Normal(random, 1, 96).data);
  const TensorView together = device.Empty(40, 96, 0, device.activation_dtype());
  Plan(device, {{.num_rows = 40}});
  device->RmsNorm({.x = in, .weight = weight, .eps = 1e-6f, .rows = {}, .out = together});
  for (int32_t r = 0; r < 40; ++r) {
    const TensorView alone = device.Empty(1, 96, 0, device.activation_dtype());
    const std::vector<int32_t> rows = {r};
    device->RmsNorm({.x = in, .weight = weight, .eps = 1e-6f, .rows = rows, .out = alone});
    EXPECT_TRUE(device->Finish().ok());
    EXPECT_EQ(device.Get(alone).data, device.Get(together.Rows(r, 1)).data);
  }
}

TEST_P(PointwiseOn, AddBiasAddsToTheColumnsOfEveryRow) {
  Random random(26);
  for (const int64_t width : {1, 31, 64, 500, 1152}) {
    const HostTensor x = Normal(random, 9, width);
    const HostTensor bias = Normal(random, 1, width);
    for (const int64_t padding : {0, 3, 64}) {
      const TensorView in_place = device.Put(x, padding);
      Plan(device, {{.num_rows = 9}});
      device->AddBias({.x = in_place, .bias = device.Put(bias.data)});
      EXPECT_TRUE(device->Finish().ok());
      const HostTensor got = device.Get(in_place);
      for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t i = 0; i < width; ++i) {
          ASSERT_EQ(got.row(r)[i], x.row(r)[i] + bias.data[static_cast<size_t>(i)]);
        }
      }
    }
  }
}

TEST_P(PointwiseOn, NormHeadsNormsEveryHeadByItself) {
  Random random(27);
  for (const int32_t d : {16, 64, 96, 112, 128, 256}) {
    for (const auto& [query_heads, kv_heads] : {std::pair{1, 1}, {6, 2}, {16, 1}, {9, 3}}) {
      HostTensor q = Normal(random, 5, int64_t{query_heads} * d, 3.0f);
      const HostTensor k = Normal(random, 5, int64_t{kv_heads} * d, 0.1f);
      std::fill_n(q.row(2), d, 0.0f);  // a head of zeros stays one
      const HostTensor q_weight = Normal(random, 1, d);
      const HostTensor k_weight = Normal(random, 1, d);
      HostTensor results[2][2];
      for (int i = 0; i < 2; ++i) {
        Device& on = i == 0 ? judge : device;
        const TensorView in_place[] = {on.Put(q, 2 * d), on.Put(k)};
        Plan(on, {{.num_rows = 5}});
        on->NormHeads({.q = in_place[0],
                       .k = in_place[1],
                       .q_weight = on.Put(q_weight.data),
                       .k_weight = on.Put(k_weight.data),
                       .head_dim = d,
                       .eps = 1e-6f});
        EXPECT_TRUE(on->Finish().ok());
        for (int j = 0; j < 2; ++j) results[i][j] = on.Get(in_place[j]);
      }
      for (int j = 0; j < 2; ++j) {
        const HostTensor& want = results[0][j];
        for (int64_t r = 0; r < want.rows; ++r) {
          for (int64_t head = 0; head < want.cols; head += d) {
            ASSERT_LT(RelativeError(results[1][j].row(r) + head, want.row(r) + head, d), 1e-6)
                << "d " << d << ", row " << r << ", column " << head;
          }
        }
      }
      EXPECT_EQ(Norm(results[1][0].row(2), d), 0.0);
      // One value by hand: an element over its head's root mean square, times its weight.
      const float* last = k.row(4) + k.cols - d;
      const double mean = Norm(last, d) * Norm(last, d) / d;
      EXPECT_NEAR(results[1][1].row(4)[k.cols - 1],
                  last[d - 1] / std::sqrt(mean + 1e-6) * k_weight.data.back(), 1e-5);
    }
  }
}

TEST_P(PointwiseOn, NormHeadsOfARowDoesNotFeelItsBatch) {
  Random random(28);
  const int32_t d = 96;
  const HostTensor q = Normal(random, 21, 3 * d);
  const HostTensor k = Normal(random, 21, d);
  const float* weight = device.Put(Normal(random, 1, d).data);
  const auto norm = [&](const TensorView& queries, const TensorView& keys) {
    Plan(device, {{.num_rows = static_cast<int32_t>(queries.rows)}});
    device->NormHeads({.q = queries,
                       .k = keys,
                       .q_weight = weight,
                       .k_weight = weight,
                       .head_dim = d,
                       .eps = 1e-6f});
    EXPECT_TRUE(device->Finish().ok());
  };
  const TensorView together[] = {device.Put(q), device.Put(k)};
  const TensorView alone[] = {device.Put(q), device.Put(k)};
  norm(together[0], together[1]);
  for (int64_t r = 0; r < q.rows; ++r) norm(alone[0].Rows(r, 1), alone[1].Rows(r, 1));
  for (int j = 0; j < 2; ++j) EXPECT_EQ(device.Get(alone[j]).data, device.Get(together[j]).data);
}

TEST_P(PointwiseOn, RopeRotatesByEachRowsOwnPositionAndBase) {
  Random random(23);
  for (const int32_t d : {32, 64, 96, 128}) {
    const std::vector<SequenceRows> rows = {
        {.num_rows = 3, .position = 0, .kind = RowKind::kPrefill, .rope_theta = 10000.0f},
        {.row_begin = 3, .num_rows = 2, .position = 1017, .rope_theta = 10000.0f},
        {.row_begin = 5, .num_rows = 1, .position = 131071, .rope_theta = 812345.0f}};
    const HostTensor q = Normal(random, 6, 4 * d);
    const HostTensor k = Normal(random, 6, 2 * d);
    HostTensor results[2][2];
    for (int i = 0; i < 2; ++i) {
      Device& on = i == 0 ? judge : device;
      const TensorView in_place[] = {on.Put(q, 2 * d), on.Put(k)};
      Plan(on, rows);
      on->Rope({.q = in_place[0], .k = in_place[1], .head_dim = d});
      EXPECT_TRUE(on->Finish().ok());
      results[i][0] = on.Get(in_place[0]);
      results[i][1] = on.Get(in_place[1]);
    }
    ExpectRowsNear(results[1][0], results[0][0], 1e-6);
    ExpectRowsNear(results[1][1], results[0][1], 1e-6);
    // Position 0 turns nothing; a rotation keeps the norm.
    EXPECT_LT(RelativeError(results[1][0].row(0), q.row(0), q.cols), 1e-7);
    EXPECT_NEAR(Norm(results[1][0].row(5), q.cols), Norm(q.row(5), q.cols), 1e-4);
  }
}

// Layers of two kinds take turns.
TEST_P(PointwiseOn, RopeOfALayerMayHaveItsOwnBase) {
  Random random(30);
  const int32_t d = 256;
  const std::vector<SequenceRows> rows = {
      {.num_rows = 3, .position = 4090, .kind = RowKind::kPrefill, .rope_theta = 1e6f},
      {.row_begin = 3, .num_rows = 1, .position = 131071, .rope_theta = 1234567.0f}};
  const std::vector<SequenceRows> same = [&rows] {
    std::vector<SequenceRows> local = rows;
    for (SequenceRows& sequence : local) sequence.rope_theta = 1e4f;
    return local;
  }();
  const HostTensor q = Normal(random, 4, 4 * d);
  const HostTensor k = Normal(random, 4, d);
  const RopeScaling linear = {.type = RopeScalingType::kLinear, .factor = 8.0};
  const auto turned = [&](Device& on, const std::vector<SequenceRows>& planned, bool own) {
    std::vector<TensorView> tensors;
    Plan(on, planned);
    for (const bool local : {true, false, true, false}) {
      tensors.push_back(on.Put(q, 64));
      const TensorView keys = on.Put(k);
      if (local) {
        on->Rope({.q = tensors.back(), .k = keys, .head_dim = d, .theta = own ? 1e4f : 0.0f});
      } else {
        on->Rope({.q = tensors.back(), .k = keys, .head_dim = d, .scaling = linear});
      }
    }
    EXPECT_TRUE(on->Finish().ok());
    std::vector<HostTensor> results;
    for (const TensorView& tensor : tensors) results.push_back(on.Get(tensor));
    return results;
  };
  const auto want = turned(judge, rows, true);
  const auto got = turned(device, rows, true);
  const auto by_sequence = turned(device, same, false);
  for (size_t i = 0; i < want.size(); ++i) ExpectRowsNear(got[i], want[i], 1e-6);
  EXPECT_EQ(got[0].data, by_sequence[0].data) << "as sequences of that base";
  EXPECT_EQ(got[2].data, got[0].data);
  EXPECT_NE(got[1].data, got[0].data);
}

// Of Llama 3.1: pairs that stay, that turn 8 times slower and that lie between.
constexpr RopeScaling kLlama3 = {.type = RopeScalingType::kLlama3,
                                 .factor = 8.0,
                                 .low_freq_factor = 1.0,
                                 .high_freq_factor = 4.0,
                                 .original_context = 8192};
constexpr RopeScaling kLinear = {.type = RopeScalingType::kLinear, .factor = 2.5};
constexpr RopeScaling kYarn = {.type = RopeScalingType::kYarn,
                               .factor = 4.0,
                               .ramp_begin = 7.0,
                               .ramp_end = 19.5,
                               .attention_factor = 1.1386294361119891};

TEST(RopeScalingTest, FastPairsStaySlowOnesStretchAndThoseBetweenAreBlended) {
  constexpr double kOnce = 1.0 / 8192;  // turns per token
  for (const int32_t pair : {0, 31}) {
    EXPECT_EQ(kLlama3.Scaled(4.0 * kOnce, pair), 4.0 * kOnce);
    EXPECT_EQ(kLlama3.Scaled(1000.0 * kOnce, pair), 1000.0 * kOnce);
    EXPECT_EQ(kLlama3.Scaled(1.0 * kOnce, pair), kOnce / 8);
    EXPECT_EQ(kLlama3.Scaled(0.01 * kOnce, pair), 0.01 * kOnce / 8);
    EXPECT_DOUBLE_EQ(kLlama3.Scaled(2.5 * kOnce, pair), 2.5 * kOnce * (0.5 + 0.5 / 8));
    for (const double frequency : {0.159, 1e-4, 1e-9}) {
      EXPECT_EQ(RopeScaling().Scaled(frequency, pair), frequency);
      EXPECT_EQ(RopeScaling{.type = RopeScalingType::kDynamic}.Scaled(frequency, pair), frequency);
      EXPECT_EQ(kLinear.Scaled(frequency, pair), frequency / 2.5);
    }
  }
}

TEST(RopeScalingTest, YarnStretchesByTheNumberOfThePair) {
  for (const int32_t pair : {0, 6, 7}) EXPECT_EQ(kYarn.Scaled(0.1, pair), 0.1);
  for (const int32_t pair : {20, 21, 63}) EXPECT_EQ(kYarn.Scaled(0.1, pair), 0.1 / 4);
  EXPECT_DOUBLE_EQ(kYarn.Scaled(0.1, 12), 0.1 * (0.6 + 0.4 / 4));
}

TEST_P(PointwiseOn, RopeTurnsByScaledFrequencies) {
  const std::vector<SequenceRows> rows = {
      {.num_rows = 3, .position = 4090, .kind = RowKind::kPrefill, .rope_theta = 500000.0f},
      {.row_begin = 3, .num_rows = 1, .position = 131071, .rope_theta = 500000.0f}};
  for (const int32_t d : {64, 96, 128}) {
    HostTensor x(4, 2 * d);  // every pair of every head is (1, 0): comes back as (cos, sin)
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int32_t head = 0; head < 2; ++head) std::fill_n(x.row(r) + head * d, d / 2, 1.0f);
    }
    for (const RopeScaling& scaling : {kLlama3, RopeScaling(), kYarn, kLinear, kLlama3}) {
      const TensorView q = device.Put(x, 64);
      const TensorView k = device.Put(x);
      Plan(device, rows);
      device->Rope({.q = q, .k = k, .head_dim = d, .scaling = scaling});
      EXPECT_TRUE(device->Finish().ok());
      const HostTensor turned[] = {device.Get(q), device.Get(k)};
      for (int64_t r = 0; r < x.rows; ++r) {
        const int32_t position = r < 3 ? 4090 + static_cast<int32_t>(r) : 131071;
        for (int32_t i = 0; i < d; ++i) {
          // As transformers computes it: by wavelengths, three cases.
          const int32_t pair = i % (d / 2);
          double frequency = std::pow(500000.0, -2.0 * pair / d);
          const double wavelength = 2.0 * M_PI / frequency;
          const bool llama3 = scaling.type == RopeScalingType::kLlama3;
          if (scaling.type == RopeScalingType::kLinear) {
            frequency /= 2.5;
          } else if (scaling.type == RopeScalingType::kYarn) {
            const double ramp = std::clamp((pair - 7.0) / 12.5, 0.0, 1.0);
            frequency = frequency / 4.0 * ramp + frequency * (1.0 - ramp);
          } else if (llama3 && wavelength > 8192.0 / 1.0) {
            frequency /= 8.0;
          } else if (llama3 && wavelength >= 8192.0 / 4.0) {
            const double smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
            frequency = (1.0 - smooth) * frequency / 8.0 + smooth * frequency;
          }
          const double angle = position * frequency;
          const double want =
              scaling.attention_factor * (i < d / 2 ? std::cos(angle) : std::sin(angle));
          for (const HostTensor& got : turned) {
            ASSERT_NEAR(got.row(r)[i], want, 1e-6) << "row " << r << " of " << i;
            ASSERT_NEAR(got.row(r)[d + i], want, 1e-6) << "row " << r << " of " << i;
          }
        }
      }
    }
  }
}

TEST_P(PointwiseOn, ThresholdsArePredictedOrFrozenRowByRow) {
  Random random(24);
  const int32_t heads = 9;
  const int32_t d = 64;
  const HostTensor q = Normal(random, 7, heads * d);
  const HostTensor weight = Normal(random, heads, heads * d, 0.05f);
  const HostTensor bias = Normal(random, 1, heads);
  const HostTensor frozen = Normal(random, 3, heads);  // three layers
  const std::vector<SequenceRows> rows = {
      {.num_rows = 4, .kind = RowKind::kPrefill},
      {.row_begin = 4, .num_rows = 2, .frozen_thresholds = frozen.data.data()},
      {.row_begin = 6, .num_rows = 1}};
  for (const bool predictor : {true, false}) {
    HostTensor results[2];
    for (int i = 0; i < 2; ++i) {
      Device& on = i == 0 ? judge : device;
      const TensorView out = on.Empty(7, heads, 3);
      Plan(on, rows);
      on->PredictThresholds({.layer = 2,
                             .q = on.Put(q, 64),
                             .weight = predictor ? on.Put(weight.data) : nullptr,
                             .bias = predictor ? on.Put(bias.data) : nullptr,
                             .out = out});
      EXPECT_TRUE(on->Finish().ok());
      results[i] = on.Get(out);
    }
    ExpectRowsNear(results[1], results[0], 1e-6);
    for (const int64_t r : {4, 5}) {  // the very bits of the profile
      for (int64_t h = 0; h < heads; ++h) {
        EXPECT_EQ(std::bit_cast<uint32_t>(results[1].row(r)[h]),
                  std::bit_cast<uint32_t>(frozen.row(2)[h]));
      }
    }
    if (!predictor) {
      EXPECT_EQ(results[1].row(0)[0], 0.0f);
      EXPECT_EQ(results[1].row(6)[heads - 1], 0.0f);
    }
  }
}

TEST_P(PointwiseOn, SwiGluMatchesTheReferenceAlsoFarFromZero) {
  Random random(25);
  for (const auto& [f, activation] : {std::pair<int64_t, Activation>{1, Activation::kSilu},
                                      {31, Activation::kGelu},
                                      {64, Activation::kSilu},
                                      {64, Activation::kGelu},
                                      {300, Activation::kSilu},
                                      {300, Activation::kGelu}}) {
    HostTensor gate_up = Normal(random, 5, 2 * f, 3.0f);
    gate_up.row(1)[0] = 100.0f;
    gate_up.row(2)[0] = -100.0f;
    gate_up = Rounded(gate_up, device.activation_dtype());
    const double tolerance =
        (activation == Activation::kGelu ? 1e-5 : 2e-6) + RoundingError(device.activation_dtype());
    HostTensor results[2];
    for (int i = 0; i < 2; ++i) {
      Device& on = i == 0 ? judge : device;
      const TensorView out = on.Empty(5, f, 1, on.activation_dtype());
      Plan(on, {{.num_rows = 5}});
      on->SwiGlu({.gate_up = on.Put(gate_up, 4, on.activation_dtype()),
                  .out = out,
                  .activation = activation});
      EXPECT_TRUE(on->Finish().ok());
      results[i] = on.Get(out);
    }
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t i = 0; i < f; ++i) {
        EXPECT_NEAR(results[1].row(r)[i], results[0].row(r)[i],
                    tolerance * std::abs(results[0].row(r)[i]) + 1e-30);
      }
    }
  }
}

// As torch's gelu with approximate="tanh" has them.
TEST(PointwiseTest, GeluIsItsFormWithTanh) {
  const std::pair<float, double> known[] = {{-100.0f, 0.0},
                                            {-3.0f, -0.0036373920817729943},
                                            {-1.0f, -0.15880800939172324},
                                            {-0.5f, -0.15428599017485995},
                                            {0.0f, 0.0},
                                            {0.5f, 0.34571400982514005},
                                            {1.0f, 0.8411919906082768},
                                            {3.0f, 2.996362607918227},
                                            {100.0f, 100.0}};
  for (const char* name : {"reference", "cpu"}) {
    Device on({name});
    HostTensor gate_up(1, 18);
    for (size_t i = 0; i < 9; ++i) {
      gate_up.data[i] = known[i].first;
      gate_up.data[9 + i] = 2.0f;
    }
    const TensorView out = on.Empty(1, 9);
    const std::vector<int32_t> token = {0};
    const std::vector<SequenceRows> rows = {{.num_rows = 1}};
    on->Plan({token, rows});
    on->SwiGlu({.gate_up = on.Put(gate_up), .out = out, .activation = Activation::kGelu});
    EXPECT_TRUE(on->Finish().ok());
    const HostTensor got = on.Get(out);
    for (size_t i = 0; i < 9; ++i) {
      EXPECT_NEAR(got.data[i], 2.0 * known[i].second, 1e-6 * std::abs(known[i].first) + 1e-30)
          << name << " at " << known[i].first;
    }
  }
}

// Both sides of both limits, and numbers that are none.
TEST_P(PointwiseOn, ClampedSwiGluMatchesItsFormula) {
  Random random(26);
  for (const int64_t f : {1, 31, 64, 300}) {
    HostTensor gate_up = Normal(random, 6, 2 * f, 5.0f);
    gate_up.row(1)[0] = 100.0f;
    gate_up.row(2)[0] = -100.0f;
    gate_up.row(3)[f] = 100.0f;
    gate_up.row(4)[f] = -100.0f;
    gate_up = Rounded(gate_up, device.activation_dtype());
    gate_up.row(5)[0] = std::numeric_limits<float>::quiet_NaN();
    const TensorView out = device.Empty(6, f, 1, device.activation_dtype());
    Plan(device, {{.num_rows = 6}});
    device->SwiGlu({.gate_up = device.Put(gate_up, 4, device.activation_dtype()),
                    .out = out,
                    .activation = Activation::kClamped});
    EXPECT_TRUE(device->Finish().ok());
    const HostTensor got = device.Get(out);
    const double tolerance = 4e-6 + RoundingError(device.activation_dtype());
    EXPECT_TRUE(std::isnan(got.row(5)[0]));
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t i = 0; i < f; ++i) {
        const double gate = std::min(double{gate_up.row(r)[i]}, 7.0);
        const double up = std::clamp(double{gate_up.row(r)[f + i]}, -7.0, 7.0);
        const double want = gate / (1.0 + std::exp(-1.702 * gate)) * (up + 1.0);
        EXPECT_NEAR(got.row(r)[i], want, tolerance * std::abs(want) + 1e-6) << r << " " << i;
      }
    }
  }
}

TEST_P(PointwiseOn, RefusesAGeometryThatCannotBe) {
  const KvGeometry good = {.num_kv_heads = 2, .head_dim = 64};
  EXPECT_TRUE(device->Layout(good).ok());
  const auto refuses = [&](auto change) {
    KvGeometry bad = good;
    change(bad);
    return device->Layout(bad).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refuses([](KvGeometry& g) { g.num_kv_heads = 0; }));
  EXPECT_TRUE(refuses([](KvGeometry& g) { g.head_dim = 0; }));
  EXPECT_TRUE(refuses([](KvGeometry& g) { g.head_dim = -64; }));
  EXPECT_TRUE(refuses([](KvGeometry& g) { g.block_size = 0; }));
  EXPECT_TRUE(refuses([](KvGeometry& g) { g.sub_block = 5; }));
  EXPECT_TRUE(refuses([](KvGeometry& g) { g.sub_block = -1; }));
  EXPECT_TRUE(refuses([](KvGeometry& g) { g.dtype = DType::kInt8; }));
  EXPECT_TRUE(refuses([](KvGeometry& g) { g.index_dtype = DType::kFloat32; }));
  EXPECT_TRUE(refuses([](KvGeometry& g) { g.index_dtype = DType::kFloat8E4M3; }));
}

INSTANTIATE_TEST_SUITE_P(Kernels, PointwiseOn, ValuesIn(AllBackends()),
                         [](const auto& test) { return TestName(test.param); });

}  // namespace
}  // namespace eta::testing
