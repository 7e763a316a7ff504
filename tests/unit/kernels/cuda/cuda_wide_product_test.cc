// Products of packed weights by 17 to 64 rows with warpgroups (RunWideProduct), on their own: steps
// do not use them yet. Numbers that a table of embeddings gives stand in for what the device keeps;
// a sum in double precision judges products with them.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/packed/packed_product.h"
#include "kernels/cuda/rows/matmul.h"
#include "tests/testing/kernels/kernel_harness.h"
#include "tests/testing/kernels/random_blocks.h"

namespace eta::testing {
namespace {

// Full and ragged columns, of both kernels.
constexpr int64_t kWideRows[] = {17, 24, 31, 32, 33, 63, 64};

struct WideShape {
  int64_t n;
  int64_t k;
};
// Ragged tiles, warpgroups and thread blocks; K of no whole group and of no whole chunk, of an odd
// number of chunks, cut and not; more thread blocks than a device has room for.
constexpr WideShape kWideShapes[] = {{1, 8},       {40, 40},     {130, 576},   {257, 4104},
                                     {1000, 2304}, {3072, 2048}, {4096, 1024}, {36000, 64}};

struct WideOps {
  const HostTensor* onto = nullptr;
  const std::vector<float>* bias = nullptr;
  bool narrow_out = false;  // in the type of products
};

class CudaWideProduct : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!WhyMissing({"cuda"}).empty()) GTEST_SKIP() << WhyMissing({"cuda"});
    auto own = cuda::Device::Open(0);
    ASSERT_TRUE(own.ok()) << own.status();
    own_ = *std::move(own);
    if (own_->compute_capability() != 90) GTEST_SKIP() << "no products of warpgroups";
    device_ = std::make_unique<Device>(BackendUnderTest{.name = "cuda", .compute = GetParam()});
    scratch_ = std::make_unique<cuda::Scratch>(*own_);
  }

  std::unique_ptr<Matrix> Pack(std::span<const HostMatrix> parts, WeightFormat format) {
    auto matrix = (*device_)->Pack(parts, format);
    EXPECT_TRUE(matrix.ok()) << matrix.status();
    return *std::move(matrix);
  }
  std::unique_ptr<Matrix> Pack(Random& random, const WideShape& shape, WeightFormat format) {
    std::vector<std::byte> storage;
    const HostTensor weights = Normal(random, shape.n, shape.k, 0.02f);
    const HostMatrix host = ToHostMatrix(weights, DType::kBFloat16, storage);
    return Pack({&host, 1}, format);
  }
  HostTensor RandomX(Random& random, int64_t rows, int64_t k) {
    return Rounded(Normal(random, rows, k), GetParam());
  }

  // The numbers that the device keeps of one matrix.
  HostTensor Kept(const Matrix& matrix) {
    HostTensor numbers(matrix.rows(), matrix.cols());
    for (int64_t first = 0; first < matrix.rows(); first += 512) {
      const int64_t count = std::min<int64_t>(512, matrix.rows() - first);
      std::vector<int32_t> tokens;
      for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(first + i));
      const TensorView out = device_->Empty(count, matrix.cols(), 3);
      const SequenceRows sequence = {.num_rows = static_cast<int32_t>(count)};
      (*device_)->Plan({tokens, {&sequence, 1}});
      (*device_)->Embed({&matrix, out});
      EXPECT_EQ((*device_)->Finish(), absl::OkStatus());
      const HostTensor some = device_->Get(out);
      std::ranges::copy(some.data, numbers.row(first));
      device_->Clear();
    }
    return numbers;
  }

  cuda::RowProduct ProductOf(const Matrix& weight, const TensorView& x, const TensorView& out) {
    cuda::RowProduct product;
    product.x = x;
    product.weight = static_cast<const cuda::DeviceMatrix&>(weight).weight();
    product.out = out;
    return product;
  }
  bool Run(const cuda::RowProduct& product) {
    cuda::Context context{*own_, *scratch_, {}};
    return cuda::RunWideProduct(context, product);
  }
  HostTensor Multiply(const Matrix& weight, const HostTensor& x, const WideOps& ops) {
    const DType dtype = ops.narrow_out ? GetParam() : DType::kFloat32;
    const TensorView in = device_->Put(x, 8, GetParam());
    const TensorView out = ops.onto != nullptr ? device_->Put(*ops.onto, 3, dtype)
                                               : device_->Empty(x.rows, weight.rows(), 3, dtype);
    cuda::RowProduct product = ProductOf(weight, in, out);
    product.accumulate = ops.onto != nullptr;
    if (ops.bias != nullptr) product.bias = device_->Put(*ops.bias);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(Run(product));
    EXPECT_EQ(own_->status(), absl::OkStatus());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    HostTensor result = device_->Get(out);
    device_->Clear();
    return result;
  }

  // Some outputs of every row.
  void ExpectProducts(const HostTensor& got, const HostTensor& x, const HostTensor& weights,
                      const WideOps& ops) {
    const double rounding = 4e-6 + (ops.narrow_out ? RoundingError(GetParam()) : 0.0);
    const int64_t step = std::max<int64_t>(weights.rows / 40, 1);
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t c = r % step; c < weights.rows; c += step) {
        const double old = ops.onto != nullptr ? double{ops.onto->row(r)[c]} : 0.0;
        const double bias = ops.bias != nullptr ? double{(*ops.bias)[static_cast<size_t>(c)]} : 0.0;
        double want = old + bias;
        for (int64_t k = 0; k < x.cols; ++k) want += double{x.row(r)[k]} * weights.row(c)[k];
        const double scale =
            Norm(x.row(r), x.cols) * Norm(weights.row(c), x.cols) + std::abs(old) + std::abs(bias);
        ASSERT_NEAR(got.row(r)[c], want, rounding * scale + 1e-30)
            << "row " << r << " of " << x.rows << ", column " << c << " of " << weights.rows
            << ", inner " << x.cols;
      }
    }
  }
  void ExpectEveryCount(const Matrix& weight, const HostTensor& kept, Random& random) {
    std::vector<float> bias(static_cast<size_t>(weight.rows()));
    std::ranges::generate(bias, [&] { return static_cast<float>(UniformReal(random, -1, 1)); });
    for (const int64_t rows : kWideRows) {
      const HostTensor x = RandomX(random, rows, weight.cols());
      const HostTensor onto = Normal(random, rows, weight.rows());
      for (const WideOps& ops :
           {WideOps{}, WideOps{.onto = &onto}, WideOps{.bias = &bias, .narrow_out = true}}) {
        ExpectProducts(Multiply(weight, x, ops), x, kept, ops);
        if (HasFatalFailure()) return;
      }
    }
  }

  std::unique_ptr<cuda::Device> own_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<cuda::Scratch> scratch_;
};

TEST_P(CudaWideProduct, MatchesForIntegers) {
  Random random(71);
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    for (const WideShape& shape : kWideShapes) {
      const auto weight = Pack(random, shape, format);
      ExpectEveryCount(*weight, Kept(*weight), random);
      ASSERT_FALSE(HasFatalFailure()) << Name(format) << ", " << shape.n << " x " << shape.k;
    }
  }
}

TEST_P(CudaWideProduct, MatchesForE4M3OfChannelsAndOfBlocks) {
  Random random(72);
  for (const WideShape& blocks : {WideShape{1, 1 << 20}, WideShape{128, 128}}) {
    for (const WideShape& shape : kWideShapes) {
      const Float8Matrix matrix(random, shape.n, shape.k, blocks.n, blocks.k);
      const auto weight = Pack({&matrix.host(), 1}, WeightFormat::kNative);
      ExpectEveryCount(*weight, Kept(*weight), random);
      ASSERT_FALSE(HasFatalFailure()) << blocks.n << ", " << shape.n << " x " << shape.k;
    }
  }
}

TEST_P(CudaWideProduct, StackedPartsKeepTheirOwnTypes) {
  Random random(73);
  const auto four = *std::ranges::find(PackedLayouts(), GgmlType::kQ4_K, &GgmlLayout::type);
  const auto eight = *std::ranges::find(PackedLayouts(), GgmlType::kQ8_0, &GgmlLayout::type);
  for (const int64_t cols : {512, 4096}) {
    std::vector<std::byte> storage[3];
    const HostTensor numbers = RandomX(random, 72, cols);
    const HostMatrix parts[] = {RandomPackedMatrix(random, four, 600, cols, storage[0]),
                                ToHostMatrix(numbers, GetParam(), storage[1]),
                                RandomPackedMatrix(random, eight, 40, cols, storage[2])};
    HostTensor kept(0, cols);
    for (const HostMatrix& part : parts) {
      const HostTensor own = Kept(*Pack({&part, 1}, WeightFormat::kNative));
      kept.data.insert(kept.data.end(), own.data.begin(), own.data.end());
      kept.rows += own.rows;
    }
    ExpectEveryCount(*Pack(parts, WeightFormat::kNative), kept, random);
  }
}

TEST_P(CudaWideProduct, ARowDoesNotFeelTheRowsBesideIt) {
  Random random(74);
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    for (const WideShape& shape : {WideShape{1000, 4096}, WideShape{36000, 64}}) {
      const auto weight = Pack(random, shape, format);
      const HostTensor x = RandomX(random, 64, shape.k);
      const HostTensor many = Multiply(*weight, x, {});
      for (const int64_t rows : {17, 23, 32, 33, 50}) {
        const int64_t first = Uniform(random, 0, 64 - rows);
        HostTensor some(rows, shape.k);
        std::copy_n(x.row(first), rows * shape.k, some.data.data());
        const HostTensor got = Multiply(*weight, some, {});
        EXPECT_TRUE(std::equal(got.data.begin(), got.data.end(), many.row(first))) << rows;
      }
    }
  }
}

// Each kernel starts while the one before it ends, so a missing wait would show as a changing
// result.
TEST_P(CudaWideProduct, ReplaysGiveTheSameBits) {
  Random random(75);
  const auto weight = Pack(random, {2048, 2048}, WeightFormat::kInt4);
  for (const int64_t rows : {17, 64}) {
    const TensorView start = device_->Put(RandomX(random, rows, 2048), 0, GetParam());
    const TensorView between[] = {device_->Empty(rows, 2048, 0, GetParam()),
                                  device_->Empty(rows, 2048, 0, GetParam())};
    const auto run = [&] {
      EXPECT_TRUE(Run(ProductOf(*weight, start, between[0])));
      for (int i = 0; i < 7; ++i) {
        EXPECT_TRUE(Run(ProductOf(*weight, between[i % 2], between[(i + 1) % 2])));
      }
    };
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    run();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const HostTensor want = device_->Get(between[1]);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(own_->stream(), cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    run();
    ASSERT_EQ(cudaStreamEndCapture(own_->stream(), &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(cudaGraphLaunch(exec, own_->stream()), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(own_->stream()), cudaSuccess);
      EXPECT_EQ(device_->Get(between[1]).data, want.data) << "replay " << i;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    EXPECT_EQ(own_->status(), absl::OkStatus());
    device_->Clear();
  }
}

TEST_P(CudaWideProduct, LeavesOtherRowsAndOpsToOtherKernels) {
  Random random(76);
  const auto weight = Pack(random, {32, 64}, WeightFormat::kInt8);
  for (const int64_t rows : {1, 16, 65}) {
    const TensorView x = device_->Put(RandomX(random, rows, 64), 0, GetParam());
    EXPECT_FALSE(Run(ProductOf(*weight, x, device_->Empty(rows, 32)))) << rows;
  }
  const TensorView x = device_->Put(RandomX(random, 17, 64), 0, GetParam());
  cuda::RowProduct activates = ProductOf(*weight, x, device_->Empty(17, 32));
  activates.activated = device_->Empty(17, 16, 0, GetParam());
  EXPECT_FALSE(Run(activates));
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaWideProduct,
                         ::testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& type) { return std::string(Name(type.param)); });

}  // namespace
}  // namespace eta::testing
