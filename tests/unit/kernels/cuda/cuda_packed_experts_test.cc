// Products with packed experts on a GPU, whether the backend keeps them so or not. Numbers that a
// table of embeddings gives stand in for what the device keeps, and the reference multiplies these.
// Many places have the bits that unpacked weights give.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/experts/experts.h"
#include "tests/testing/kernels/expert_step.h"
#include "tests/testing/kernels/kernel_harness.h"
#include "tests/testing/kernels/random_blocks.h"

namespace eta::testing {
namespace {

// How the weights of a part are stored.
enum class StoredAs { kInt8, kInt4, kE4M3, kE4M3Blocks, kQ4K, kMxfp4 };

// The experts of one projection: parts [N, K] of each.
class StoredExperts {
 public:
  StoredExperts(Random& random, const std::vector<StoredAs>& parts, int32_t experts, int64_t rows,
                int64_t cols)
      : parts_(parts.size()) {
    const bool rounds = std::ranges::any_of(
        parts, [](StoredAs as) { return as == StoredAs::kInt4 || as == StoredAs::kInt8; });
    format_ = rounds ? WeightFormat::kInt4 : WeightFormat::kNative;
    for (size_t i = 0; i < static_cast<size_t>(experts) * parts_; ++i) {
      Add(random, parts[i % parts_], rows, cols);
    }
  }

  std::vector<std::unique_ptr<Matrix>> Pack(Backend& backend) const {
    std::vector<std::unique_ptr<Matrix>> out;
    for (size_t i = 0; i < hosts_.size(); i += parts_) {
      auto matrix = backend.Pack(std::span(hosts_).subspan(i, parts_), format_);
      EXPECT_TRUE(matrix.ok()) << matrix.status();
      out.push_back(*std::move(matrix));
    }
    return out;
  }
  // Parts, expert by expert.
  size_t num_parts() const { return parts_; }
  size_t size() const { return hosts_.size(); }
  const HostMatrix& host(size_t i) const { return hosts_[i]; }
  WeightFormat format() const { return format_; }

 private:
  void Add(Random& random, StoredAs stored, int64_t rows, int64_t cols) {
    storage_.push_back(std::make_unique<std::vector<std::byte>>());
    if (stored == StoredAs::kE4M3 || stored == StoredAs::kE4M3Blocks) {
      const bool blocks = stored == StoredAs::kE4M3Blocks;
      float8_.push_back(std::make_unique<Float8Matrix>(random, rows, cols, blocks ? 128 : 1,
                                                       blocks ? 128 : 1 << 20));
      hosts_.push_back(float8_.back()->host());
    } else if (stored == StoredAs::kQ4K || stored == StoredAs::kMxfp4) {
      const GgmlType type = stored == StoredAs::kQ4K ? GgmlType::kQ4_K : GgmlType::kMXFP4;
      const GgmlLayout& layout = *std::ranges::find(PackedLayouts(), type, &GgmlLayout::type);
      hosts_.push_back(RandomPackedMatrix(random, layout, rows, cols, *storage_.back()));
    } else {
      const float deviation = 1.0f / std::sqrt(static_cast<float>(cols));
      hosts_.push_back(
          ToHostMatrix(Normal(random, rows, cols, deviation), DType::kBFloat16, *storage_.back()));
      hosts_.back().keeps_eight = stored == StoredAs::kInt8;
    }
  }

  size_t parts_;
  std::vector<HostMatrix> hosts_;
  WeightFormat format_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> storage_;
  std::vector<std::unique_ptr<Float8Matrix>> float8_;
};

struct PackedLayer {
  ExpertLayer layer;
  StoredAs gate, up, down;
};
// K of no whole chunk, of fewer than there are warps, and one that tensor cores do not take;
// channels of no whole tile, and of an odd number of them; gate and up of two types.
constexpr PackedLayer kPackedLayers[] = {
    {{32, 4, 256, 96}, StoredAs::kInt4, StoredAs::kInt4, StoredAs::kInt8},
    {{5, 2, 1032, 40}, StoredAs::kInt4, StoredAs::kInt8, StoredAs::kInt8},
    {{12, 4, 64, 776, true}, StoredAs::kInt8, StoredAs::kInt8, StoredAs::kInt4},
    {{1, 1, 136, 24}, StoredAs::kE4M3, StoredAs::kE4M3, StoredAs::kE4M3},
    {{9, 9, 200, 264}, StoredAs::kE4M3Blocks, StoredAs::kE4M3Blocks, StoredAs::kE4M3},
    {{6, 2, 512, 256, true}, StoredAs::kQ4K, StoredAs::kQ4K, StoredAs::kMxfp4},
    {{12, 3, 100, 36, true}, StoredAs::kInt4, StoredAs::kInt4, StoredAs::kInt8},
};

class CudaPackedExperts : public ::testing::TestWithParam<DType> {
 protected:
  CudaPackedExperts() : device_({.name = "cuda", .compute = GetParam()}) {}
  void SetUp() override {
    if (!WhyMissing({"cuda"}).empty()) GTEST_SKIP() << WhyMissing({"cuda"});
    stacking_ = *cuda::Device::Open(0);
  }

  std::unique_ptr<ExpertStack> Stack(const StoredExperts& experts, bool packed) {
    auto stack = cuda::StackExperts(*device_.operator->(), *stacking_,
                                    experts.Pack(*device_.operator->()), packed);
    EXPECT_TRUE(stack.ok()) << stack.status();
    return *std::move(stack);
  }
  // A stack of the numbers that the device keeps, on the reference.
  std::unique_ptr<ExpertStack> Kept(Device& judge, const StoredExperts& experts) {
    std::vector<std::unique_ptr<Matrix>> matrices;
    for (size_t i = 0; i < experts.size(); i += experts.num_parts()) {
      HostTensor all(0, experts.host(i).cols);
      for (size_t part = i; part < i + experts.num_parts(); ++part) {
        const HostTensor numbers = KeptOf(experts.host(part), experts.format());
        all.data.insert(all.data.end(), numbers.data.begin(), numbers.data.end());
        all.rows += numbers.rows;
      }
      std::vector<std::byte> storage;
      const HostMatrix host = ToHostMatrix(all, DType::kFloat32, storage);
      matrices.push_back(*judge->Pack({&host, 1}, WeightFormat::kNative));
    }
    return *judge->experts().Stack(std::move(matrices));
  }

  Device device_;
  std::unique_ptr<cuda::Device> stacking_;

 private:
  HostTensor KeptOf(const HostMatrix& host, WeightFormat format) {
    const auto matrix = *device_->Pack({&host, 1}, format);
    std::vector<int32_t> tokens(static_cast<size_t>(host.rows));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
    const SequenceRows sequence = {.num_rows = static_cast<int32_t>(tokens.size())};
    const TensorView out = device_.Empty(host.rows, host.cols, 3);
    device_->Plan({tokens, {&sequence, 1}});
    device_->Embed({matrix.get(), out});
    EXPECT_EQ(device_->Finish(), absl::OkStatus());
    HostTensor numbers = device_.Get(out);
    device_.Clear();
    return numbers;
  }
};

struct Inputs {
  Inputs(Random& random, const ExpertLayer& layer, int64_t rows, Crowd crowd, DType compute)
      : logits(Logits(random, rows, layer.experts, crowd)),
        x(Rounded(Normal(random, rows, layer.dim), compute)),
        onto(Normal(random, rows, layer.dim)) {}

  void Run(Device& on, ExpertStep& step, const ExpertStack& up, const ExpertStack& down,
           bool apart) const {
    step.Fill(step.logits(), logits);
    step.Fill(step.x(), x);
    step.Fill(step.out(), onto);
    step.Begin(x.rows);
    step.Route(true);
    step.Multiply(up, down, apart);
    ASSERT_EQ(on->Finish(), absl::OkStatus());
  }

  HostTensor logits, x, onto;
};

StoredExperts UpOf(Random& random, const PackedLayer& packed) {
  const ExpertLayer& layer = packed.layer;
  return {random, {packed.gate, packed.up}, layer.experts, layer.width, layer.dim};
}
StoredExperts DownOf(Random& random, const PackedLayer& packed) {
  const ExpertLayer& layer = packed.layer;
  return {random, {packed.down}, layer.experts, layer.dim, layer.width};
}

TEST_P(CudaPackedExperts, ProductsAreTheReferencesOfWhatIsKept) {
  Random random(71);
  const double rounding = RoundingError(GetParam());
  for (const PackedLayer& packed : kPackedLayers) {
    const ExpertLayer& layer = packed.layer;
    const StoredExperts first = UpOf(random, packed);
    const StoredExperts second = DownOf(random, packed);
    Device judge({"reference"});
    const auto judge_up = Kept(judge, first);
    const auto judge_down = Kept(judge, second);
    device_.Clear();
    const auto up = Stack(first, true);
    const auto down = Stack(second, true);
    constexpr int64_t kMostRows = 200;
    ExpertStep want(judge, layer, kMostRows);
    ExpertStep got(device_, layer, kMostRows);
    for (const int64_t rows : {1, 2, 4, 9, 17, 64, 65, 200}) {
      for (const Crowd crowd : {Crowd::kSpread, Crowd::kTogether}) {
        SCOPED_TRACE(std::to_string(layer.experts) + " experts, " + std::to_string(layer.dim) +
                     " to " + std::to_string(layer.width) + ", " + std::to_string(rows) +
                     " rows, crowd " + std::to_string(static_cast<int>(crowd)));
        const Inputs inputs(random, layer, rows, crowd, GetParam());
        inputs.Run(judge, want, *judge_up, *judge_down, false);
        for (const bool apart : {true, false}) {
          inputs.Run(device_, got, *up, *down, apart);
          ASSERT_EQ(got.experts(), want.experts());
          ExpectNear(got.Wide(), want.Wide(), 1e-5 + 2 * rounding, "gate and up");
          // A product of the two above, of which each may be off by two roundings, and its own.
          ExpectNear(got.Activated(), want.Activated(), 1e-5 + 8 * rounding, "activated");
          ExpectNear(got.Narrow(), want.Narrow(), 1e-5 + 8 * rounding, "down");
          ExpectNear(got.Out(), want.Out(), 1e-5 + 8 * rounding, "sum");
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(CudaPackedExperts, ManyPlacesHaveTheBitsOfUnpackedWeights) {
  Random random(72);
  for (const PackedLayer& packed : kPackedLayers) {
    const ExpertLayer& layer = packed.layer;
    if (layer.dim % 8 != 0 || layer.width % 8 != 0) continue;
    const StoredExperts first = UpOf(random, packed);
    const StoredExperts second = DownOf(random, packed);
    device_.Clear();
    const auto up = Stack(first, true);
    const auto down = Stack(second, true);
    const auto wide_up = Stack(first, false);
    const auto wide_down = Stack(second, false);
    // Short tiles and long ones.
    for (const int64_t rows : {int64_t{16} * layer.experts + 65, int64_t{96} * layer.experts + 1}) {
      ExpertStep step(device_, layer, rows);
      const Inputs inputs(random, layer, rows, Crowd::kSpread, GetParam());
      for (const bool apart : {true, false}) {
        inputs.Run(device_, step, *wide_up, *wide_down, apart);
        const HostTensor wide = step.Wide();
        const HostTensor activated = step.Activated();
        const HostTensor narrow = step.Narrow();
        const HostTensor out = step.Out();
        inputs.Run(device_, step, *up, *down, apart);
        EXPECT_EQ(step.Wide().data, wide.data) << rows;
        EXPECT_EQ(step.Activated().data, activated.data) << rows;
        EXPECT_EQ(step.Narrow().data, narrow.data) << rows;
        EXPECT_EQ(step.Out().data, out.data) << rows;
      }
    }
  }
}

TEST_P(CudaPackedExperts, ARowHasTheSameBitsAmongUpTo64AndInAReplay) {
  Random random(73);
  for (const PackedLayer& packed : kPackedLayers) {
    const ExpertLayer& layer = packed.layer;
    device_.Clear();
    const auto up = Stack(UpOf(random, packed), true);
    const auto down = Stack(DownOf(random, packed), true);
    ExpertStep step(device_, layer, 64);
    for (const Crowd crowd : {Crowd::kSpread, Crowd::kTogether}) {
      const Inputs all(random, layer, 64, crowd, GetParam());
      all.Run(device_, step, *up, *down, false);
      const HostTensor together = step.Out();
      for (const auto& [first, rows] : {std::pair{0, 1}, {63, 1}, {11, 3}, {7, 5}, {20, 40}}) {
        Inputs some = all;
        for (HostTensor* part : {&some.logits, &some.x, &some.onto}) {
          const HostTensor from = *part;
          *part = HostTensor(rows, from.cols);
          std::copy_n(from.row(first), rows * from.cols, part->data.data());
        }
        // The first time kernels are launched, then recorded, then replayed.
        for (int time = 0; time < 3; ++time) {
          some.Run(device_, step, *up, *down, false);
          const HostTensor got = step.Out();
          EXPECT_TRUE(std::equal(got.data.begin(), got.data.end(), together.row(first)))
              << "rows from " << first << ", " << rows << " of them, time " << time;
        }
      }
    }
  }
}

// A stack is one piece of memory, as large as its chunks. Experts of several types are unpacked.
TEST_P(CudaPackedExperts, AStackHoldsItsFormatsBytes) {
  Random random(74);
  constexpr int32_t kExperts = 6;
  constexpr int64_t kRows = 96;
  constexpr int64_t kCols = 256;
  const auto bytes = [&](const std::vector<StoredAs>& parts, bool packed) {
    return static_cast<double>(Stack({random, parts, kExperts, kRows, kCols}, packed)->bytes());
  };
  constexpr double kNumbers = kExperts * kRows * kCols;
  EXPECT_NEAR(bytes({StoredAs::kInt4}, true), kNumbers * 0.625, kExperts * 1024);
  EXPECT_NEAR(bytes({StoredAs::kInt8}, true), kNumbers * 1.0625, kExperts * 1024);
  EXPECT_NEAR(bytes({StoredAs::kQ4K, StoredAs::kInt8}, true), kNumbers * 1.6875, kExperts * 2048);
  EXPECT_EQ(bytes({StoredAs::kInt4}, false), kNumbers * 2);

  const StoredExperts four(random, {StoredAs::kInt4}, kExperts, kRows, kCols);
  const StoredExperts eight(random, {StoredAs::kInt8}, kExperts, kRows, kCols);
  auto matrices = four.Pack(*device_.operator->());
  matrices[3] = std::move(eight.Pack(*device_.operator->())[3]);
  const auto mixed =
      cuda::StackExperts(*device_.operator->(), *stacking_, std::move(matrices), true);
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  EXPECT_EQ((*mixed)->bytes(), static_cast<size_t>(kNumbers) * 2);
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaPackedExperts,
                         ::testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& test) { return std::string(Name(test.param)); });

}  // namespace
}  // namespace eta::testing
