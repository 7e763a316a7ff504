// Quantised weights on a GPU, unpacked, are the numbers that they unpack to.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/params/layer.h"
#include "tests/testing/engine/gguf_blocks.h"
#include "tests/testing/kernels/kernel_harness.h"
#include "tests/testing/kernels/random_blocks.h"

namespace eta::testing {
namespace {

std::vector<float> Product(Device& device, const HostTensor& x,
                           const std::vector<HostMatrix>& parts) {
  const auto weight = *device->Pack(parts, WeightFormat::kUnpacked);
  const TensorView out = device.Empty(x.rows, weight->rows());
  const std::vector<int32_t> tokens(static_cast<size_t>(x.rows));
  const SequenceRows rows[] = {
      {.num_rows = static_cast<int32_t>(x.rows), .kind = RowKind::kPrefill}};
  device->Plan({tokens, rows});
  device->MatMul({.x = device.Put(x, 0, device.activation_dtype()),
                  .weight = weight.get(),
                  .out = out,
                  .accumulate = false,
                  .rows_of_step = true});
  EXPECT_TRUE(device->Finish().ok());
  const std::vector<float> product = device.Get(out).data;
  device.Clear();
  return product;
}

TEST(CudaBlocks, AreMultipliedAsTheNumbersThatTheyUnpackTo) {
  constexpr int64_t kCols = 2048;
  constexpr int64_t kRows = 1100;  // over a piece of what is uploaded, in every type of products
  std::mt19937 blocks_random(7);
  Random random(8);
  const HostTensor x = Normal(random, 3, kCols);
  const HostTensor others = Normal(random, 40, kCols);
  for (const DType compute : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const BackendUnderTest backend = {.name = "cuda", .compute = compute};
    if (!WhyMissing(backend).empty()) GTEST_SKIP() << WhyMissing(backend);
    Device device(backend);
    std::vector<std::byte> storage;
    const HostMatrix numbers = ToHostMatrix(others, DType::kFloat16, storage);
    for (const GgmlType type : kBlockTypes) {
      const GgmlLayout layout = LayoutOf(type);
      SCOPED_TRACE(layout.name);
      const std::vector<std::byte> blocks =
          GgufBlocks(type, kRows * kCols / layout.block_elements, 0.02f, blocks_random);
      HostTensor unpacked(kRows, kCols);
      UnpackBlocks(layout, blocks, std::as_writable_bytes(std::span(unpacked.data)));
      const HostMatrix packed = {blocks.data(), DType::kFloat32, kRows, kCols, &layout};
      const HostMatrix floats = {unpacked.data.data(), DType::kFloat32, kRows, kCols};
      EXPECT_EQ(Product(device, x, {packed, numbers, packed}),
                Product(device, x, {floats, numbers, floats}));
    }
  }
}

// Scales of channels that have several, which no packed form has, and exact products.
TEST(CudaBlocks, E4M3IsMultipliedAsTheNumbersThatItStandsFor) {
  Random random(9);
  const HostTensor x = Normal(random, 3, 512);
  const Float8Matrix matrix(random, 70, 512, 1, 128);
  std::vector<std::byte> storage;
  const HostMatrix floats = ToHostMatrix(Unpacked(matrix.host()), DType::kFloat32, storage);
  for (const DType compute : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const BackendUnderTest backend = {.name = "cuda", .compute = compute};
    if (!WhyMissing(backend).empty()) GTEST_SKIP() << WhyMissing(backend);
    Device device(backend);
    const auto kept = *device->Pack({&matrix.host(), 1}, WeightFormat::kNative);
    EXPECT_EQ(kept->bytes(), 70 * 512 * SizeOf(compute));
    EXPECT_EQ(Product(device, x, {matrix.host()}), Product(device, x, {floats}));
  }
}

TEST(CudaBlocks, OtherFormatsAreRefusedWithExactProducts) {
  const BackendUnderTest backend = {.name = "cuda"};
  if (!WhyMissing(backend).empty()) GTEST_SKIP() << WhyMissing(backend);
  Device device(backend);
  const std::vector<float> zeros(64);
  const HostMatrix part = {zeros.data(), DType::kFloat32, 2, 32};
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    EXPECT_EQ(device->Pack({&part, 1}, format).status(),
              absl::InvalidArgumentError(
                  absl::StrCat("weights: ", std::string(Name(format)),
                               " on cuda needs products in bfloat16 or float16 (--compute)")));
  }
}

}  // namespace
}  // namespace eta::testing
