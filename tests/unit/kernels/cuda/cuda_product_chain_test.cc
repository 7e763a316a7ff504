// Chains of products of few rows as one kernel (RunProductChain) against RunRowProduct, product by
// product, and against themselves to the last bit.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/rows/matmul.h"
#include "kernels/cuda/rows/product_chain.h"
#include "kernels/cuda/rows/row_product.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

// The numbers of a layer's tensors: of attention's result, of the residual, of the gate, and of
// what comes last. Ragged and whole tiles; K of less than a stage, of whole stages and of others;
// fewer and more tiles than thread blocks; a layer of 1.45B.
struct ChainShape {
  int64_t attended;
  int64_t width;
  int64_t inner;
  int64_t last;
};
constexpr ChainShape kChainShapes[] = {{8, 8, 8, 1},           {200, 40, 24, 130},
                                       {1032, 264, 2056, 56},  {1024, 2048, 1000, 48},
                                       {512, 512, 1536, 9000}, {2048, 2048, 8192, 3072}};
constexpr int64_t kChainRows[] = {1, 2};

struct ChainForm {
  bool norms = true;
  bool biases = false;
  bool gathers = false;
  bool float_gate = false;
};
constexpr ChainForm kChainForms[] = {{}, {true, true, true, true}, {false, true, false, false}};

class CudaProductChain : public ::testing::TestWithParam<DType> {
 protected:
  using Weights = std::array<std::unique_ptr<Matrix>, 4>;
  using Products = std::array<cuda::RowProduct, 4>;

  void SetUp() override {
    if (!WhyMissing({"cuda"}).empty()) GTEST_SKIP() << WhyMissing({"cuda"});
    auto own = cuda::Device::Open(0);
    ASSERT_TRUE(own.ok()) << own.status();
    own_ = *std::move(own);
    if (own_->compute_capability() != 90) GTEST_SKIP() << "no bulk copies";
    device_ = std::make_unique<Device>(BackendUnderTest{.name = "cuda", .compute = GetParam()});
    scratch_ = std::make_unique<cuda::Scratch>(*own_);
  }

  std::unique_ptr<Matrix> Pack(Random& random, int64_t n, int64_t k) {
    std::vector<std::byte> storage;
    const float deviation = 1.0f / std::sqrt(static_cast<float>(k));
    const HostMatrix host =
        ToHostMatrix(Normal(random, n, k, deviation), DType::kBFloat16, storage);
    auto matrix = (*device_)->Pack({&host, 1}, WeightFormat::kNative);
    EXPECT_TRUE(matrix.ok()) << matrix.status();
    return *std::move(matrix);
  }
  Weights PackLayer(Random& random, const ChainShape& shape) {
    return {Pack(random, shape.width, shape.attended), Pack(random, 2 * shape.inner, shape.width),
            Pack(random, shape.width, shape.inner), Pack(random, shape.last, shape.width)};
  }
  // A tensor that runs may change: Restore() gives it its first numbers again.
  TensorView Put(Random& random, int64_t rows, int64_t cols, DType dtype) {
    const TensorView view = device_->Put(Normal(random, rows, cols), 8, dtype);
    tensors_.push_back(view);
    first_.push_back(Bytes(view));
    return view;
  }
  const float* PutFloats(Random& random, int64_t count) {
    return device_->Put(Normal(random, 1, count).data);
  }

  // The products of a layer from attention to the next layer's Q, K and V, on new tensors.
  Products MakeLayer(Random& random, const ChainShape& shape, int64_t rows, const ChainForm& form,
                     const Weights& weights) {
    const DType narrow = GetParam();
    tensors_.clear();
    first_.clear();
    const DType kind = form.norms ? DType::kFloat32 : narrow;
    const TensorView residual = Put(random, rows, shape.width, kind);
    const TensorView activated = Put(random, rows, shape.inner, narrow);
    Products products;
    for (size_t i = 0; i < products.size(); ++i) {
      products[i].weight = static_cast<const cuda::DeviceMatrix&>(*weights[i]).weight();
    }
    products[0].x = Put(random, rows, shape.attended, narrow);
    products[0].out = residual;
    products[0].accumulate = form.norms;
    products[1].out =
        Put(random, rows, 2 * shape.inner, form.float_gate ? DType::kFloat32 : narrow);
    products[1].activated = activated;
    products[1].activation = form.norms ? Activation::kSilu : Activation::kGelu;
    products[2].x = activated;
    products[2].out = residual;
    products[2].accumulate = true;
    products[3].out = Put(random, rows, weights[3]->rows(), form.norms ? DType::kFloat32 : narrow);
    for (const size_t i : {size_t{1}, size_t{3}}) {
      products[i].x = form.norms ? Put(random, rows, shape.width, narrow) : residual;
      if (!form.norms) continue;
      products[i].norm = {residual, PutFloats(random, shape.width), 1e-5f, nullptr};
      if (!form.gathers) continue;
      std::vector<int32_t> from;
      for (int64_t r = 0; r < rows; ++r) {
        from.push_back(static_cast<int32_t>(Uniform(random, 0, rows - 1)));
      }
      products[i].norm.rows = device_->Put(from);
    }
    if (form.biases) {
      for (const size_t i : {size_t{0}, size_t{2}, size_t{3}}) {
        products[i].bias = PutFloats(random, products[i].out.cols);
      }
    }
    return products;
  }

  std::vector<std::byte> Bytes(const TensorView& view) {
    const int64_t elements = (view.rows - 1) * view.stride + view.cols;
    return device_->Get(reinterpret_cast<const std::byte*>(view.data),
                        static_cast<size_t>(elements) * SizeOf(view.dtype));
  }
  void Restore() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      (*device_)->Upload(reinterpret_cast<std::byte*>(tensors_[i].data), first_[i].data(),
                         first_[i].size());
    }
  }
  struct Tensors {
    std::vector<std::vector<std::byte>> bits;
    std::vector<HostTensor> numbers;
  };
  // What `run` makes of all tensors in two turns, the second of which finds what the first one left
  // of the barrier.
  template <typename Run>
  Tensors After(Run&& run) {
    Restore();
    run();
    run();
    EXPECT_EQ(cudaStreamSynchronize(own_->stream()), cudaSuccess);
    EXPECT_EQ(own_->status(), absl::OkStatus());
    Tensors all;
    for (const TensorView& view : tensors_) {
      all.bits.push_back(Bytes(view));
      all.numbers.push_back(device_->Get(view));
    }
    return all;
  }

  void RunApart(std::span<const cuda::RowProduct> products) {
    cuda::Context context{*own_, *scratch_, {}};
    for (const cuda::RowProduct& product : products) {
      EXPECT_TRUE(cuda::RunRowProduct(context, product));
    }
  }
  void RunTogether(std::span<const cuda::RowProduct> products) {
    cuda::Context context{*own_, *scratch_, {}};
    EXPECT_EQ(cuda::RunProductChain(context, products, 1), products.size());
  }
  void ExpectNear(std::span<const cuda::RowProduct> products, const std::string& what) {
    const auto want = After([&] { RunApart(products); });
    const auto got = After([&] { RunTogether(products); });
    const auto again = After([&] { RunTogether(products); });
    EXPECT_TRUE(got.bits == again.bits) << what << ": a second time other bits";
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const std::vector<float>& expected = want.numbers[i].data;
      EXPECT_LT(RelativeError(got.numbers[i].data.data(), expected.data(), std::ssize(expected)),
                1e-5 + 2 * RoundingError(GetParam()))
          << what << ", tensor " << i;
    }
  }

  // Every form, from every product on, as many as there are.
  void ExpectNearOfAll(Random& random, const ChainShape& shape, int64_t rows,
                       const Weights& weights) {
    for (const ChainForm& form : kChainForms) {
      const Products products = MakeLayer(random, shape, rows, form, weights);
      const std::span all(products);
      for (size_t first = 0; first < all.size(); ++first) {
        for (size_t count = 1; first + count <= all.size(); ++count) {
          if (HasFailure()) return;  // a device that is lost would fail all others
          ExpectNear(all.subspan(first, count),
                     "width " + std::to_string(shape.width) + ", rows " + std::to_string(rows) +
                         (form.norms ? ", norms" : "") + (form.biases ? ", biases" : "") +
                         ", products from " + std::to_string(first) + ": " + std::to_string(count));
        }
      }
      device_->Clear();
    }
  }

  std::unique_ptr<cuda::Device> own_;
  std::unique_ptr<cuda::Scratch> scratch_;
  std::unique_ptr<Device> device_;

 private:
  std::vector<TensorView> tensors_;
  std::vector<std::vector<std::byte>> first_;
};

TEST_P(CudaProductChain, GivesWhatProductsApartGive) {
  Random random(52);
  for (const ChainShape& shape : kChainShapes) {
    const Weights weights = PackLayer(random, shape);
    for (const int64_t rows : kChainRows) ExpectNearOfAll(random, shape, rows, weights);
  }
}

// Between products that are kernels of their own, as a graph.
TEST_P(CudaProductChain, ReplaysGiveTheSameBits) {
  Random random(53);
  const ChainShape shape = {512, 512, 1536, 1200};
  const Weights weights = PackLayer(random, shape);
  for (const int64_t rows : {1, 2}) {
    const Products products = MakeLayer(random, shape, rows, {}, weights);
    const std::span all(products);
    const auto run = [&] {
      for (int layer = 0; layer < 4; ++layer) RunTogether(all);
      RunApart(all.first(1));
    };
    const auto want = After(run);  // the barrier's memory is there before the capture
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(own_->stream(), cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    run();
    ASSERT_EQ(cudaStreamEndCapture(own_->stream(), &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
    const auto got =
        After([&] { EXPECT_EQ(cudaGraphLaunch(replay, own_->stream()), cudaSuccess); });
    EXPECT_TRUE(got.bits == want.bits) << rows << " rows";
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    device_->Clear();
  }
}

TEST_P(CudaProductChain, EndsWhereThereIsNoKernel) {
  Random random(54);
  const ChainShape shape = {64, 64, 64, 64};
  const Weights weights = PackLayer(random, shape);
  Products products = MakeLayer(random, shape, 2, {}, weights);
  products[3].weight.dtype = DType::kFloat32;
  cuda::Context context{*own_, *scratch_, {}};
  EXPECT_EQ(cuda::RunProductChain(context, products, 4), 0u);
  EXPECT_EQ(cuda::RunProductChain(context, products), 3u);
  products[1].weight.dtype = DType::kFloat32;
  EXPECT_EQ(cuda::RunProductChain(context, products), 0u);
  EXPECT_EQ(cuda::RunProductChain(
                context, MakeLayer(random, shape, cuda::kMostProductRows + 1, {}, weights)),
            0u);
  EXPECT_EQ(cudaStreamSynchronize(own_->stream()), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaProductChain,
                         ::testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& type) { return std::string(Name(type.param)); });

}  // namespace
}  // namespace eta::testing
