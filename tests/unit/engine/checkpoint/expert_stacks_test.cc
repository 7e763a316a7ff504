// The experts of a gpt-oss folder, each for itself.
#include "engine/checkpoint/expert_stacks.h"

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"

namespace eta {
namespace {

using ::testing::ElementsAre;
constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;
constexpr char kLayer[] = "model.layers.0.mlp.";

// Files in memory.
class StackFiles {
 public:
  void Add(const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
    TensorInfo info{.dtype = dtype, .shape = shape};
    uint64_t elements = 1;
    for (const int64_t size : shape) elements *= static_cast<uint64_t>(size);
    info.end = elements * SizeOf(dtype);
    tensors[kLayer + name] = info;
    std::vector<std::byte>& bytes = data_[kLayer + name];
    bytes.resize(info.end);
    for (size_t i = 0; i < elements; ++i) {
      if (dtype == DType::kUInt8) {
        bytes[i] = static_cast<std::byte>(i * 7 + 1);
      } else {
        StoreElement(dtype, bytes.data(), static_cast<int64_t>(i), static_cast<float>(i));
      }
    }
  }
  std::byte At(const std::string& name, size_t i) const { return data_.at(kLayer + name)[i]; }

  ExpertStacks::Read Reader() const {
    return [this](const std::string& name, uint64_t begin,
                  uint64_t size) -> absl::StatusOr<std::vector<std::byte>> {
      const std::vector<std::byte>& bytes = data_.at(name);
      return std::vector<std::byte>(bytes.begin() + static_cast<ptrdiff_t>(begin),
                                    bytes.begin() + static_cast<ptrdiff_t>(begin + size));
    };
  }
  std::vector<float> Numbers(const ExpertStacks& stacks, const std::string& name) const {
    const auto bytes = stacks.ReadNumbers(kLayer + name, Reader()).value();
    const TensorInfo& info = tensors.at(kLayer + name);
    EXPECT_EQ(bytes.size(), info.bytes());
    std::vector<float> numbers;
    for (size_t i = 0; i < bytes.size() / SizeOf(info.dtype); ++i) {
      numbers.push_back(LoadElement(info.dtype, bytes.data(), static_cast<int64_t>(i)));
    }
    return numbers;
  }

  std::map<std::string, TensorInfo> tensors;

 private:
  std::map<std::string, std::vector<std::byte>> data_;
};

TEST(ExpertStacks, NumbersAreTurnedAndTakenApart) {
  StackFiles files;
  files.Add("experts.gate_up_proj", DType::kBFloat16, {2, 3, 4});  // D = 3, F = 2
  files.Add("experts.gate_up_proj_bias", DType::kFloat32, {2, 4});
  files.Add("experts.down_proj", DType::kBFloat16, {2, 2, 3});
  files.Add("experts.down_proj_bias", DType::kFloat32, {2, 3});
  files.Add("router.weight", DType::kBFloat16, {2, 3});
  files.Add("router.bias", DType::kFloat32, {2});
  const auto stacks = ExpertStacks::Present(files.tensors).value();
  EXPECT_EQ(files.tensors.size(), 14u);
  EXPECT_THAT(files.tensors.at(std::string(kLayer) + "experts.1.up_proj.weight").shape,
              ElementsAre(2, 3));
  EXPECT_THAT(files.Numbers(stacks, "experts.0.gate_proj.weight"), ElementsAre(0, 4, 8, 2, 6, 10));
  EXPECT_THAT(files.Numbers(stacks, "experts.0.up_proj.weight"), ElementsAre(1, 5, 9, 3, 7, 11));
  EXPECT_THAT(files.Numbers(stacks, "experts.1.gate_proj.weight"),
              ElementsAre(12, 16, 20, 14, 18, 22));
  EXPECT_THAT(files.Numbers(stacks, "experts.1.down_proj.weight"), ElementsAre(6, 9, 7, 10, 8, 11));
  EXPECT_THAT(files.Numbers(stacks, "experts.1.gate_proj.bias"), ElementsAre(4, 6));
  EXPECT_THAT(files.Numbers(stacks, "experts.1.up_proj.bias"), ElementsAre(5, 7));
  EXPECT_THAT(files.Numbers(stacks, "experts.1.down_proj.bias"), ElementsAre(3, 4, 5));
  EXPECT_THAT(files.Numbers(stacks, "gate.weight"), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(files.Numbers(stacks, "gate.bias"), ElementsAre(0, 1));
}

TEST(ExpertStacks, BlocksBecomeGgmls) {
  StackFiles files;
  files.Add("experts.gate_up_proj_blocks", DType::kUInt8, {2, 4, 3, 16});  // D = 96, F = 2
  files.Add("experts.gate_up_proj_scales", DType::kUInt8, {2, 4, 3});
  const auto stacks = ExpertStacks::Present(files.tensors).value();
  EXPECT_EQ(files.tensors.size(), 6u - 2u);
  const std::string name = std::string(kLayer) + "experts.1.up_proj.weight";
  EXPECT_THAT(files.tensors.at(name).shape, ElementsAre(2, 96));
  EXPECT_EQ(files.tensors.at(name).dtype, DType::kFloat32);
  const auto stored = stacks.ReadStored(name, files.Reader()).value();
  ASSERT_TRUE(stored.blocks);
  EXPECT_EQ(stored.blocks->type, GgmlType::kMXFP4);
  ASSERT_EQ(stored.bytes.size(), 2u * 3 * 17);
  // Row 1 is row 3 of the expert's four.
  const size_t block = (4 + 3) * 3 + 2;
  EXPECT_EQ(stored.bytes[5 * 17], files.At("experts.gate_up_proj_scales", block));
  const auto numbers = files.Numbers(stacks, "experts.1.up_proj.weight");
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const auto scale = static_cast<int>(files.At("experts.gate_up_proj_scales", block));
  for (size_t i = 0; i < 32; ++i) {
    const auto both =
        static_cast<unsigned>(files.At("experts.gate_up_proj_blocks", block * 16 + i / 2));
    const unsigned code = i % 2 == 0 ? both & 15 : both >> 4;
    const float value = code < 8 ? kValues[code] : -kValues[code - 8];
    EXPECT_EQ(numbers[(3 + 2) * 32 + i], std::ldexp(value, scale - 127)) << i;
  }
}

// bad input: Weights | gpt-oss: stacks of experts of wrong shape or type, blocks without scales or
//   of other sizes, a tensor that is there twice | INVALID_ARGUMENT, tensor named
TEST(ExpertStacks, WhatDoesNotFitIsNamed) {
  const auto expect = [](const std::function<void(StackFiles&)>& change, const std::string& words) {
    StackFiles files;
    files.Add("experts.down_proj_blocks", DType::kUInt8, {2, 4, 3, 16});
    files.Add("experts.down_proj_scales", DType::kUInt8, {2, 4, 3});
    files.Add("experts.gate_up_proj", DType::kBFloat16, {2, 3, 4});
    auto sound = files.tensors;
    ASSERT_TRUE(ExpertStacks::Present(sound).ok());
    change(files);
    EXPECT_THAT(ExpertStacks::Present(files.tensors).status(),
                FailsSaying(kInvalidArgument, words));
  };
  const std::string blocks = std::string("tensor '") + kLayer + "experts.down_proj_blocks' ";
  const std::string scales = std::string("tensor '") + kLayer + "experts.down_proj_scales' ";
  expect([](auto& f) { f.tensors.erase(std::string(kLayer) + "experts.down_proj_scales"); },
         blocks + "has no scales");
  expect([](auto& f) { f.tensors.erase(std::string(kLayer) + "experts.down_proj_blocks"); },
         scales + "has no");
  expect(
      [](auto& f) {
        f.Add("experts.down_proj_scales", DType::kUInt8, {2, 4, 2});
      },
      scales + "must be uint8 of the shape [2, 4, 3]");
  expect(
      [](auto& f) {
        f.Add("experts.down_proj_scales", DType::kBFloat16, {2, 4, 3});
      },
      scales + "must be uint8");
  expect(
      [](auto& f) {
        f.Add("experts.down_proj_blocks", DType::kUInt8, {2, 4, 3, 8});
      },
      blocks + "must be uint8 of the shape [experts, rows, blocks, 16]");
  expect(
      [](auto& f) {
        f.Add("experts.down_proj", DType::kBFloat16, {2, 96, 4});
      },
      "is there twice, as numbers and as blocks");
  expect(
      [](auto& f) {
        f.Add("experts.gate_up_proj", DType::kBFloat16, {2, 3, 5});
      },
      "has an odd number of channels");
  expect(
      [](auto& f) {
        f.Add("experts.gate_up_proj", DType::kBFloat16, {2, 12});
      },
      "must have 3 dimensions");
  expect(
      [](auto& f) {
        f.Add("experts.gate_up_proj", DType::kBFloat16, {0, 3, 4});
      },
      "must have 1 to 1024 experts");
  expect(
      [](auto& f) {
        f.Add("experts.gate_up_proj_zero", DType::kBFloat16, {2, 3, 4});
      },
      "experts.gate_up_proj_zero' is not known");
  expect(
      [](auto& f) {
        f.Add("experts.1.up_proj.weight", DType::kBFloat16, {2, 3});
      },
      "is there twice, for itself and in a stack");
}

TEST(ExpertStacks, OtherFoldersStayAsTheyAre) {
  StackFiles files;
  files.Add("experts.1.up_proj.weight", DType::kBFloat16, {2, 3});
  files.Add("router.weight", DType::kBFloat16, {2, 3});
  const auto before = files.tensors.size();
  const auto stacks = ExpertStacks::Present(files.tensors).value();
  EXPECT_EQ(files.tensors.size(), before);
  EXPECT_TRUE(files.tensors.contains(std::string(kLayer) + "router.weight"));
  EXPECT_FALSE(stacks.Has(std::string(kLayer) + "router.weight"));
}

}  // namespace
}  // namespace eta
