// The ops of a layer's experts: the choice by itself, products and sums against the reference, and
// a whole layer against plain sums over all experts.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/params/experts.h"
#include "kernels/params/layer.h"
#include "tests/testing/kernels/kernel_harness.h"
#include "tests/testing/kernels/random_blocks.h"

namespace eta::testing {
namespace {

struct ExpertShape {
  int64_t rows;
  int32_t experts;
  int32_t per_row;
  int64_t dim;
  int64_t width;
};

constexpr ExpertShape kExpertShapes[] = {
    {1, 1, 1, 32, 32},   {1, 8, 2, 64, 48},  {3, 5, 5, 40, 33},   {7, 16, 4, 96, 64},
    {40, 8, 3, 64, 160}, {90, 4, 2, 33, 32}, {70, 128, 8, 64, 32}};

// A choice in the device's memory, and what stands in it.
class ChoiceOf {
 public:
  ChoiceOf(Device& device, int64_t rows, int32_t num_experts, int32_t per_row)
      : device_(device), size_(static_cast<size_t>(rows * per_row)) {
    const auto put = [&](size_t count) { return device.Put(std::vector<int32_t>(count, -1)); };
    view = {.num_experts = num_experts,
            .per_row = per_row,
            .experts = put(size_),
            .weights = device.Put(std::vector<float>(size_)),
            .places = put(size_),
            .rows = put(size_),
            .place_end = put(static_cast<size_t>(num_experts))};
  }

  std::vector<int32_t> experts() { return device_.Get(view.experts, size_); }
  std::vector<float> weights() { return device_.Get(view.weights, size_); }
  std::vector<int32_t> places() { return device_.Get(view.places, size_); }
  std::vector<int32_t> rows() { return device_.Get(view.rows, size_); }
  std::vector<int32_t> place_end() {
    return device_.Get(view.place_end, static_cast<size_t>(view.num_experts));
  }

  ExpertChoice view;

 private:
  Device& device_;
  size_t size_;
};

// Begins a step of so many decode rows; what it points to lives on.
void Plan(Device& device, int64_t rows) {
  static std::vector<int32_t> tokens;
  static SequenceRows sequence;
  tokens.assign(static_cast<size_t>(rows), 0);
  sequence = {.num_rows = static_cast<int32_t>(rows)};
  device->Plan({tokens, {&sequence, 1}});
}

std::vector<int32_t> Route(Device& device, const HostTensor& logits, bool normalise,
                           const ExpertChoice& choice) {
  std::vector<int32_t> rows_of_experts(static_cast<size_t>(choice.num_experts), -1);
  Plan(device, logits.rows);
  device->experts().RouteRows({device.Put(logits, 3), normalise, choice, rows_of_experts.data()});
  EXPECT_TRUE(device->Finish().ok());
  return rows_of_experts;
}

// The experts' weights of one projection: numbers, or blocks.
struct Stack {
  Stack(Random& random, int32_t count, int64_t rows, int64_t cols, DType dtype)
      : storage(static_cast<size_t>(count)) {
    for (auto& bytes : storage) {
      const HostTensor values =
          Normal(random, rows, cols, 1.0f / std::sqrt(static_cast<float>(cols)));
      numbers.push_back(Rounded(values, dtype));
      matrices.push_back(ToHostMatrix(values, dtype, bytes));
    }
  }
  Stack(Random& random, int32_t count, int64_t rows, int64_t cols, const GgmlLayout& layout)
      : storage(static_cast<size_t>(count)) {
    for (auto& bytes : storage) {
      matrices.push_back(RandomPackedMatrix(random, layout, rows, cols, bytes));
    }
  }

  // Where `used` is given, the others are not there.
  std::unique_ptr<ExpertStack> Pack(Device& device, WeightFormat format,
                                    const std::vector<int32_t>* used = nullptr) const {
    std::vector<std::unique_ptr<Matrix>> packed;
    for (size_t e = 0; e < matrices.size(); ++e) {
      packed.emplace_back();
      if (used != nullptr && (*used)[e] == 0) continue;
      packed.back() = *device->Pack({&matrices[e], 1}, format);
    }
    return *device->experts().Stack(std::move(packed));
  }

  std::vector<std::vector<std::byte>> storage;
  std::vector<HostMatrix> matrices;
  std::vector<HostTensor> numbers;
};

class ExpertsOn : public ::testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    if (!WhyMissing(GetParam()).empty()) GTEST_SKIP() << WhyMissing(GetParam());
  }

  static bool on_cuda() { return GetParam().name == "cuda"; }
  // What weights may be kept as.
  static std::vector<WeightFormat> Formats(WeightFormat packed) {
    if (on_cuda()) return {WeightFormat::kNative};
    return {WeightFormat::kNative, packed};
  }
};

TEST_P(ExpertsOn, TheGreatestLogitsAreChosenAndWeighedAndHavePlaces) {
  Random random(1);
  for (const ExpertShape& shape : kExpertShapes) {
    for (const bool normalise : {false, true}) {
      const HostTensor logits = Normal(random, shape.rows, shape.experts, 3.0f);
      Device device(GetParam());
      ChoiceOf choice(device, shape.rows, shape.experts, shape.per_row);
      const std::vector<int32_t> counts = Route(device, logits, normalise, choice.view);
      const std::vector<int32_t> experts = choice.experts();
      const std::vector<float> weights = choice.weights();
      const std::vector<int32_t> places = choice.places();
      const std::vector<int32_t> rows = choice.rows();
      const std::vector<int32_t> place_end = choice.place_end();
      std::vector<int32_t> expected(static_cast<size_t>(shape.experts));
      for (int64_t r = 0; r < shape.rows; ++r) {
        std::vector<int32_t> order(static_cast<size_t>(shape.experts));
        std::iota(order.begin(), order.end(), 0);
        const float* row = logits.row(r);
        std::stable_sort(order.begin(), order.end(),
                         [row](int32_t a, int32_t b) { return row[a] > row[b]; });
        double all = 0.0;
        double chosen = 0.0;
        for (int32_t i = 0; i < shape.experts; ++i) {
          const double power = std::exp(double{row[order[static_cast<size_t>(i)]]});
          all += power;
          if (i < shape.per_row) chosen += power;
        }
        for (int32_t rank = 0; rank < shape.per_row; ++rank) {
          const auto at = static_cast<size_t>(r * shape.per_row + rank);
          const int32_t expert = order[static_cast<size_t>(rank)];
          ASSERT_EQ(experts[at], expert);
          EXPECT_NEAR(weights[at], std::exp(double{row[expert]}) / (normalise ? chosen : all),
                      1e-6);
          ++expected[static_cast<size_t>(expert)];
          const int32_t place = places[at];
          ASSERT_EQ(rows[static_cast<size_t>(place)], r);
          EXPECT_LT(place, place_end[static_cast<size_t>(expert)]);
          EXPECT_GE(place, expert == 0 ? 0 : place_end[static_cast<size_t>(expert) - 1]);
        }
      }
      EXPECT_EQ(counts, expected);
      std::partial_sum(expected.begin(), expected.end(), expected.begin());
      EXPECT_EQ(place_end, expected);
      for (int32_t e = 0; e < shape.experts; ++e) {
        const int32_t begin = e == 0 ? 0 : place_end[static_cast<size_t>(e) - 1];
        EXPECT_TRUE(
            std::is_sorted(rows.begin() + begin, rows.begin() + place_end[static_cast<size_t>(e)]));
      }
    }
  }
}

TEST_P(ExpertsOn, OfEqualLogitsTheLowerNumberIsFirst) {
  HostTensor logits(3, 6);
  logits.data = {1, 2, 2, 0, 2, 1, /**/ 5, 5, 5, 5, 5, 5, /**/ -1, -0.0f, 0.0f, -1, -2, -1};
  Device device(GetParam());
  ChoiceOf choice(device, 3, 6, 4);
  Route(device, logits, true, choice.view);
  EXPECT_EQ(choice.experts(), (std::vector<int32_t>{1, 2, 4, 0, 0, 1, 2, 3, 1, 2, 0, 3}));
  const std::vector<float> weights = choice.weights();
  for (size_t i = 4; i < 8; ++i) EXPECT_EQ(weights[i], 0.25f);
}

// bad input: Weights | a router's logit that is NaN or infinite in a step | every choice is an
//   expert, the row's weights are NaN, and no other row's
TEST_P(ExpertsOn, ALogitThatIsNoNumberSpoilsItsRowAlone) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  HostTensor logits(4, 5);
  logits.data = {nan, 1,        nan, 3, 2, /**/ nan, nan, nan, nan, nan,
                 1,   infinity, 3,   2, 0, /**/ 4,   1,   3,   2,   0};
  for (const bool normalise : {false, true}) {
    Device device(GetParam());
    ChoiceOf choice(device, 4, 5, 2);
    Route(device, logits, normalise, choice.view);
    EXPECT_EQ(choice.experts(), (std::vector<int32_t>{3, 4, 0, 1, 1, 2, 0, 2}));
    const std::vector<float> weights = choice.weights();
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(std::isnan(weights[i]), i < 6) << i;
  }
}

// The matrices of experts that no row chose are not even there.
TEST_P(ExpertsOn, ProductsAreTheReferencesAndReadTheChosenAlone) {
  Random random(2);
  for (const ExpertShape& shape : kExpertShapes) {
    const HostTensor logits = Normal(random, shape.rows, shape.experts);
    const HostTensor x = Normal(random, shape.rows, shape.dim);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      const Stack stack(random, shape.experts, shape.width, shape.dim, dtype);
      for (const WeightFormat format : Formats(WeightFormat::kInt8)) {
        const auto multiply = [&](Device& device, bool by_rows) {
          ChoiceOf choice(device, shape.rows, shape.experts, shape.per_row);
          const std::vector<int32_t> used = Route(device, logits, true, choice.view);
          HostTensor input = x;
          if (!by_rows) {
            input = HostTensor(shape.rows * shape.per_row, shape.dim);
            const std::vector<int32_t> rows = choice.rows();
            for (int64_t p = 0; p < input.rows; ++p) {
              std::copy_n(x.row(rows[static_cast<size_t>(p)]), shape.dim, input.row(p));
            }
          }
          const auto weights = stack.Pack(device, format, &used);
          const TensorView out = device.Empty(shape.rows * shape.per_row, shape.width, 3);
          device->experts().MultiplyExperts({device.Put(input, 5, device.activation_dtype()),
                                             by_rows, choice.view, weights.get(), out});
          EXPECT_TRUE(device->Finish().ok());
          return device.Get(out);
        };
        Device judge({"reference"});
        const HostTensor want = multiply(judge, true);
        Device device(GetParam());
        const HostTensor by_rows = multiply(device, true);
        EXPECT_EQ(multiply(device, false).data, by_rows.data);
        for (int64_t p = 0; p < want.rows; ++p) {
          // Rows and weights are rounded.
          EXPECT_LT(RelativeError(by_rows.row(p), want.row(p), shape.width),
                    2e-5 + 2 * RoundingError(device.activation_dtype()));
        }
      }
    }
  }
}

// On CUDA they are unpacked, and activations stay as they are.
TEST_P(ExpertsOn, BlocksOfAFileStayBlocks) {
  const double tolerance = on_cuda() ? 3e-2 : 1e-5;
  Random random(3);
  for (const GgmlLayout& layout : PackedLayouts()) {
    const Stack stack(random, 6, 40, 256, layout);
    const HostTensor logits = Normal(random, 29, 6);
    const HostTensor x = Normal(random, 29, 256);
    const auto multiply = [&](Device& device) {
      ChoiceOf choice(device, 29, 6, 2);
      Route(device, logits, true, choice.view);
      const auto weights = stack.Pack(device, WeightFormat::kNative);
      if (!on_cuda()) {
        EXPECT_LE(weights->bytes(), 1.3 * static_cast<double>(6 * stack.storage[0].size()));
      }
      const TensorView out = device.Empty(29 * 2, 40);
      device->experts().MultiplyExperts(
          {device.Put(x, 0, device.activation_dtype()), true, choice.view, weights.get(), out});
      return device.Get(out);
    };
    Device judge({"reference"});
    const HostTensor want = multiply(judge);
    Device device(GetParam());
    const HostTensor got = multiply(device);
    for (int64_t p = 0; p < want.rows; ++p) {
      EXPECT_LT(RelativeError(got.row(p), want.row(p), 40), tolerance) << layout.name;
    }
  }
}

// gpt-oss: experts have biases and the clamped activation.
struct LayerBiases {
  HostTensor up;    // [E, 2F]
  HostTensor down;  // [E, D]
};

// A layer's experts on a device: what is added to `onto`.
HostTensor Layer(Device& device, const HostTensor& logits, const HostTensor& x,
                 const HostTensor& onto, const ExpertShape& shape, const Stack& up,
                 const Stack& down, WeightFormat format, const LayerBiases* biases = nullptr) {
  ChoiceOf choice(device, x.rows, shape.experts, shape.per_row);
  Route(device, logits, true, choice.view);
  const auto gate_up = up.Pack(device, format);
  const auto back = down.Pack(device, format);
  const int64_t places = x.rows * shape.per_row;
  const DType type = device.activation_dtype();
  const TensorView wide = device.Empty(places, 2 * shape.width, 0, type);
  const TensorView activated = device.Empty(places, shape.width, 0, type);
  const TensorView narrow = device.Empty(places, shape.dim);
  const TensorView out = device.Put(onto, 3);
  ExpertOps& ops = device->experts();
  const Activation activation = biases ? Activation::kClamped : Activation::kSilu;
  const float* const up_bias = biases ? device.Put(biases->up.data) : nullptr;
  const float* const down_bias = biases ? device.Put(biases->down.data) : nullptr;
  ops.MultiplyExperts({device.Put(x, 0, type), true, choice.view, gate_up.get(), wide, up_bias});
  device->SwiGlu({wide, activated, activation});
  ops.MultiplyExperts({activated, false, choice.view, back.get(), narrow, down_bias});
  ops.AddExperts({narrow, choice.view, out});
  EXPECT_TRUE(device->Finish().ok());
  return device.Get(out);
}

TEST_P(ExpertsOn, ALayerIsTheSumOverItsExperts) {
  Random random(4);
  for (const ExpertShape& shape : kExpertShapes) {
    const HostTensor logits = Normal(random, shape.rows, shape.experts);
    const HostTensor x = Normal(random, shape.rows, shape.dim);
    const HostTensor onto = Normal(random, shape.rows, shape.dim);
    const Stack up(random, shape.experts, 2 * shape.width, shape.dim, DType::kFloat32);
    const Stack down(random, shape.experts, shape.dim, shape.width, DType::kFloat32);
    Device device(GetParam());
    const LayerBiases biases = {Normal(random, shape.experts, 2 * shape.width, 3.0f),
                                Normal(random, shape.experts, shape.dim)};
    const bool biased = shape.rows % 2 != 0;
    const HostTensor got = Layer(device, logits, x, onto, shape, up, down, WeightFormat::kNative,
                                 biased ? &biases : nullptr);
    for (int64_t r = 0; r < shape.rows; ++r) {
      std::vector<float> sorted(logits.row(r), logits.row(r) + shape.experts);
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      const float least = sorted[static_cast<size_t>(shape.per_row) - 1];
      std::vector<double> sum(onto.row(r), onto.row(r) + shape.dim);
      double weights = 0.0;
      for (int32_t i = 0; i < shape.per_row; ++i)
        weights += std::exp(double{sorted[static_cast<size_t>(i)]});
      for (int32_t e = 0; e < shape.experts; ++e) {
        if (logits.row(r)[e] < least) continue;
        const double weight = std::exp(double{logits.row(r)[e]}) / weights;
        const HostTensor& wide = up.numbers[static_cast<size_t>(e)];
        std::vector<double> product(static_cast<size_t>(2 * shape.width));
        for (int64_t n = 0; n < 2 * shape.width; ++n) {
          for (int64_t i = 0; i < shape.dim; ++i) {
            product[static_cast<size_t>(n)] += double{wide.row(n)[i]} * x.row(r)[i];
          }
          if (biased) product[static_cast<size_t>(n)] += biases.up.row(e)[n];
        }
        for (int64_t n = 0; n < shape.dim; ++n) {
          for (int64_t i = 0; i < shape.width; ++i) {
            const double gate = product[static_cast<size_t>(i)];
            const double met = product[static_cast<size_t>(shape.width + i)];
            const double low = std::min(gate, 7.0);
            const double activated =
                biased ? low / (1.0 + std::exp(-1.702 * low)) * (std::clamp(met, -7.0, 7.0) + 1.0)
                       : gate / (1.0 + std::exp(-gate)) * met;
            sum[static_cast<size_t>(n)] +=
                weight * activated * down.numbers[static_cast<size_t>(e)].row(n)[i];
          }
          if (biased) sum[static_cast<size_t>(n)] += weight * biases.down.row(e)[n];
        }
      }
      for (int64_t n = 0; n < shape.dim; ++n) {
        EXPECT_NEAR(got.row(r)[n], sum[static_cast<size_t>(n)],
                    (1e-5 + 4 * RoundingError(device.activation_dtype())) * (biased ? 8.0 : 1.0));
      }
    }
  }
}

TEST_P(ExpertsOn, ARowAloneHasTheBitsItHasAmongOthers) {
  Random random(5);
  for (const ExpertShape& shape : kExpertShapes) {
    const HostTensor logits = Normal(random, shape.rows, shape.experts);
    const HostTensor x = Normal(random, shape.rows, shape.dim);
    const HostTensor onto = Normal(random, shape.rows, shape.dim);
    if (on_cuda() && shape.rows > 64) continue;  // more rows may take another kernel
    for (const WeightFormat format : Formats(WeightFormat::kInt4)) {
      const Stack up(random, shape.experts, 2 * shape.width, shape.dim, DType::kBFloat16);
      const Stack down(random, shape.experts, shape.dim, shape.width, DType::kBFloat16);
      Device device(GetParam());
      const HostTensor together = Layer(device, logits, x, onto, shape, up, down, format);
      for (int64_t r = 0; r < shape.rows; r += 1 + shape.rows / 4) {
        const auto only = [r](const HostTensor& from) {
          HostTensor row(1, from.cols);
          std::copy_n(from.row(r), from.cols, row.row(0));
          return row;
        };
        const HostTensor alone =
            Layer(device, only(logits), only(x), only(onto), shape, up, down, format);
        EXPECT_EQ(alone.data, only(together).data) << "row " << r << " of " << shape.rows;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, ExpertsOn, ::testing::ValuesIn(AllBackends()),
                         [](const auto& test) { return TestName(test.param); });

}  // namespace
}  // namespace eta::testing
