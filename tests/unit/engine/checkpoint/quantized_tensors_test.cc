// Folders whose weights have 4 or 8 bits: what config.json may say of them, and their numbers.

#include "engine/checkpoint/quantized/quantized_tensors.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/quantize.h"
#include "tests/testing/base/status_reason.h"

namespace eta {
namespace {

using Json = nlohmann::json;

Json CompressedTensors(const std::string& format, Json weights) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"config_groups", {{"group_0", {{"weights", std::move(weights)}}}}}};
}

Json Integers(int bits, const std::string& strategy, bool symmetric = true, int group_size = 32) {
  Json weights = {
      {"num_bits", bits}, {"type", "int"}, {"strategy", strategy}, {"symmetric", symmetric}};
  if (strategy == "group") weights["group_size"] = group_size;
  return weights;
}

// bad input: config.json | weights quantised by GPTQ, AWQ or another method | UNIMPLEMENTED, the
//   method named
TEST(QuantizationConfig, MethodsThatAreNotReadAreNamed) {
  for (const std::string method : {"gptq", "awq", "bitsandbytes", "mxfp8", ""}) {
    EXPECT_THAT(ParseQuantization({{"quant_method", method}}).status(),
                FailsSaying(absl::StatusCode::kUnimplemented,
                            "config.json: quantization_config.quant_method '" + method +
                                "' is not supported, only fp8, mxfp4 and compressed-tensors"));
  }
}

// bad input: config.json | quantization_config with fields of wrong types, sizes or forms |
//   INVALID_ARGUMENT or UNIMPLEMENTED, the field named
TEST(QuantizationConfig, FieldsAreCheckedAndNamed) {
  const auto with = [](Json config, const Json& patch) {
    config.merge_patch(patch);
    return config;
  };
  const Json weights = Integers(4, "group");
  const Json good = CompressedTensors("pack-quantized", weights);
  ASSERT_TRUE(ParseQuantization(good).ok());
  const auto of_weights = [&](const Json& patch) {
    return CompressedTensors("pack-quantized", with(weights, patch));
  };
  const std::pair<Json, std::string> cases[] = {
      {Json::array(), "quantization_config must be an object"},
      {{{"quant_method", 4}}, "quant_method must be a text"},
      {{{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "fmt 'e5m2' is not supported"},
      {{{"quant_method", "fp8"}, {"weight_block_size", {128}}}, "weight_block_size must be two"},
      {{{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}},
       "must be an integer in 1..65536"},
      {with(good, {{"format", "marlin-24"}}), "format 'marlin-24' is not supported"},
      {with(good, {{"config_groups", {{"group_1", Json::object()}}}}), "of several groups"},
      {with(good, {{"config_groups", nullptr}}), "config_groups must be an object of one group"},
      {of_weights({{"num_bits", 3}}), "num_bits is not supported, only 4 and 8"},
      {of_weights({{"num_bits", nullptr}}), "num_bits is missing"},
      {of_weights({{"type", "float"}}), "type 'float' does not fit the format"},
      {of_weights({{"symmetric", 1}}), "symmetric must be true or false"},
      {of_weights({{"num_bits", 8}, {"symmetric", false}}), "symmetric false is not supported"},
      {of_weights({{"actorder", "group"}}), "actorder 'group' is not supported"},
      {of_weights({{"strategy", "token"}}), "strategy 'token' is not supported"},
      {of_weights({{"group_size", 16}}), "group_size 16 is not a multiple of 32"},
      {of_weights({{"group_size", nullptr}}), "group_size is missing"},
  };
  for (const auto& [config, sentence] : cases) {
    const absl::Status status = ParseQuantization(config).status();
    EXPECT_FALSE(status.ok()) << config;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(sentence));
  }
}

// The files of a folder, in memory.
class Files {
 public:
  template <typename T>
  void Add(const std::string& name, DType dtype, std::vector<int64_t> shape,
           const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    tensors[name] = {dtype, std::move(shape), 0, bytes.size()};
    data_[name] = std::move(bytes);
  }
  absl::StatusOr<QuantizedTensors> Present(const Json& config) {
    const auto quantization = ParseQuantization(config);
    if (!quantization.ok()) return quantization.status();
    return QuantizedTensors::Present(*quantization, tensors);
  }
  // The numbers of x.weight.
  std::vector<float> Numbers(const QuantizedTensors& quantized) const {
    const auto bytes = quantized.ReadFloats("x.weight", reader());
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    std::vector<float> numbers(bytes->size() / sizeof(float));
    std::memcpy(numbers.data(), bytes->data(), bytes->size());
    return numbers;
  }
  QuantizedTensors::Read reader() const {
    return [this](const std::string& name) -> absl::StatusOr<std::vector<std::byte>> {
      return data_.at(name);
    };
  }

  std::map<std::string, TensorInfo> tensors;

 private:
  std::map<std::string, std::vector<std::byte>> data_;
};

// Codes 0 .. rows * cols - 1, without NaN.
std::vector<uint8_t> Codes(int64_t count) {
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < count; ++i) {
    const auto code = static_cast<uint8_t>(i * 37);
    codes.push_back((code & 0x7F) == 0x7F ? uint8_t{0x80} : code);
  }
  return codes;
}

TEST(QuantizedTensors, E4M3WithScalesOfBlocks) {
  const Json config = {{"quant_method", "fp8"}, {"weight_block_size", {2, 4}}};
  Files files;
  const std::vector<uint8_t> codes = Codes(3 * 6);
  const std::vector<float> scales = {0.5f, 2.0f, 3.0f, -1.0f};
  files.Add("x.weight", DType::kFloat8E4M3, {3, 6}, codes);
  files.Add("x.weight_scale_inv", DType::kFloat32, {2, 2}, scales);
  files.Add("x.input_scale", DType::kFloat32, {1}, std::vector<float>{1.0f});
  files.Add("y.weight", DType::kFloat32, {1}, std::vector<float>{1.0f});
  const auto quantized = files.Present(config);
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  ASSERT_EQ(files.tensors.size(), 2u);
  EXPECT_EQ(files.tensors.at("x.weight").dtype, DType::kFloat32);
  EXPECT_EQ(files.tensors.at("x.weight").shape, (std::vector<int64_t>{3, 6}));
  EXPECT_FALSE(quantized->Has("y.weight"));
  const std::vector<float> numbers = files.Numbers(*quantized);
  ASSERT_EQ(numbers.size(), codes.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    EXPECT_EQ(numbers[i], scales[i / 6 / 2 * 2 + i % 6 / 4] * E4M3ToFloat(codes[i])) << i;
  }
}

TEST(QuantizedTensors, E4M3WithScalesOfChannelsOrOfAll) {
  const std::vector<uint8_t> codes = Codes(2 * 5);
  for (const bool channels : {true, false}) {
    const Json weights = {
        {"num_bits", 8}, {"type", "float"}, {"strategy", channels ? "channel" : "tensor"}};
    Files files;
    files.Add("x.weight", DType::kFloat8E4M3, {2, 5}, codes);
    const std::vector<uint16_t> scales = {FloatToBFloat16(0.5f), FloatToBFloat16(-3.0f)};
    if (channels) {
      files.Add("x.weight_scale", DType::kBFloat16, {2, 1}, scales);
    } else {
      files.Add("x.weight_scale", DType::kBFloat16, {1}, std::vector<uint16_t>{scales[0]});
    }
    const auto quantized = files.Present(CompressedTensors("float-quantized", weights));
    ASSERT_TRUE(quantized.ok()) << quantized.status();
    const std::vector<float> numbers = files.Numbers(*quantized);
    for (size_t i = 0; i < codes.size(); ++i) {
      EXPECT_EQ(numbers[i], (channels && i >= 5 ? -3.0f : 0.5f) * E4M3ToFloat(codes[i])) << i;
    }
  }
}

TEST(QuantizedTensors, Int8) {
  Files files;
  std::vector<int8_t> q;
  for (int i = 0; i < 2 * 64; ++i) q.push_back(static_cast<int8_t>(i * 5 - 128));
  files.Add("x.weight", DType::kInt8, {2, 64}, q);
  files.Add("x.weight_scale", DType::kFloat32, {2, 1}, std::vector<float>{0.25f, -2.0f});
  const auto quantized = files.Present(CompressedTensors("int-quantized", Integers(8, "channel")));
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  EXPECT_EQ(quantized->ReadStored("x.weight", files.reader())->blocks->type, GgmlType::kQ8_0);
  const std::vector<float> numbers = files.Numbers(*quantized);
  for (size_t i = 0; i < q.size(); ++i) {
    EXPECT_EQ(numbers[i], (i < 64 ? 0.25f : -2.0f) * static_cast<float>(q[i])) << i;
  }
}

// Numbers of `bits` bits as compressed-tensors packs them: the first in the lowest bits, along a
// row, or of zero points along a column.
std::vector<int32_t> Packed(const std::vector<int>& codes, size_t rows, size_t cols, int bits,
                            bool along_rows) {
  const size_t of_word = static_cast<size_t>(32 / bits);
  const size_t words = along_rows ? (rows + of_word - 1) / of_word * cols : rows * cols / of_word;
  std::vector<int32_t> packed(words);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const size_t word = along_rows ? r / of_word * cols + c : (r * cols + c) / of_word;
      const size_t place = along_rows ? r % of_word : c % of_word;
      const auto code = static_cast<uint32_t>(codes[r * cols + c]) << (place * bits);
      packed[word] = static_cast<int32_t>(static_cast<uint32_t>(packed[word]) | code);
    }
  }
  return packed;
}

TEST(QuantizedTensors, PackedIntegers) {
  constexpr size_t kRows = 9;
  constexpr size_t kCols = 128;
  constexpr size_t kGroups = 2;
  for (const int bits : {4, 8}) {
    for (const bool symmetric : {true, false}) {
      if (bits == 8 && !symmetric) continue;
      std::vector<int> codes, zeros;
      std::vector<uint16_t> scales;
      for (size_t i = 0; i < kRows * kCols; ++i) {
        codes.push_back(static_cast<int>(i * i % 31 * 13) % (1 << bits));
      }
      for (size_t i = 0; i < kRows * kGroups; ++i) {
        zeros.push_back(static_cast<int>(i * 7 % 16));
        scales.push_back(FloatToBFloat16(0.125f * static_cast<float>(i + 1)));
      }
      Files files;
      files.Add("x.weight_packed", DType::kInt32, {kRows, int64_t{kCols} * bits / 32},
                Packed(codes, kRows, kCols, bits, false));
      files.Add("x.weight_scale", DType::kBFloat16, {kRows, kGroups}, scales);
      files.Add("x.weight_shape", DType::kInt64, {2}, std::vector<int64_t>{kRows, kCols});
      if (!symmetric) {
        files.Add("x.weight_zero_point", DType::kInt32, {2, kGroups},
                  Packed(zeros, kRows, kGroups, 4, true));
      }
      const auto quantized = files.Present(
          CompressedTensors("pack-quantized", Integers(bits, "group", symmetric, 64)));
      ASSERT_TRUE(quantized.ok()) << quantized.status();
      EXPECT_EQ(files.tensors.size(), 1u);
      EXPECT_EQ(files.tensors.at("x.weight").shape, (std::vector<int64_t>{kRows, kCols}));
      const std::vector<float> numbers = files.Numbers(*quantized);
      for (size_t i = 0; i < codes.size(); ++i) {
        const size_t group = i / kCols * kGroups + i % kCols / 64;
        const int zero = symmetric ? 1 << (bits - 1) : zeros[group];
        EXPECT_EQ(numbers[i], BFloat16ToFloat(scales[group]) * static_cast<float>(codes[i] - zero))
            << bits << " bits, " << i;
      }
    }
  }
}

// bad input: Weights | quantised weights without scales, or with types and shapes that do not fit |
//   INVALID_ARGUMENT, the tensor named
TEST(QuantizedTensors, WhatDoesNotFitIsNamed) {
  const Json fp8 = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  const Json four = CompressedTensors("pack-quantized", Integers(4, "group", false, 64));
  struct Case {
    Json config;
    std::map<std::string, TensorInfo> tensors;
    std::string sentence;
  };
  const TensorInfo codes = {DType::kFloat8E4M3, {200, 300}, 0, 60000};
  const TensorInfo words = {DType::kInt32, {8, 16}, 0, 512};
  const TensorInfo scales = {DType::kFloat32, {8, 2}, 0, 64};
  const Case cases[] = {
      {fp8, {{"x.weight", codes}}, "tensor 'x.weight' has no scales 'x.weight_scale_inv'"},
      {fp8,
       {{"x.weight", codes}, {"x.weight_scale_inv", {DType::kFloat32, {2, 2}, 0, 16}}},
       "tensor 'x.weight_scale_inv' must have the shape [2, 3], of weights [200, 300]"},
      {fp8,
       {{"x.weight", codes}, {"x.weight_scale_inv", {DType::kInt32, {2, 3}, 0, 24}}},
       "tensor 'x.weight_scale_inv' must be float32, float16 or bfloat16"},
      {fp8, {{"x.weight", {DType::kFloat8E4M3, {7}, 0, 7}}}, "'x.weight' must have two dimensions"},
      {four, {{"x.weight_packed", words}}, "'x.weight_packed' has no scales"},
      {four,
       {{"x.weight_packed", words}, {"x.weight_scale", scales}},
       "has no 'x.weight_zero_point'"},
      {four,
       {{"x.weight_packed", words},
        {"x.weight_scale", scales},
        {"x.weight_zero_point", {DType::kInt32, {8, 2}, 0, 64}}},
       "tensor 'x.weight_zero_point' must be int32 of the shape [1, 2]"},
      {four,
       {{"x.weight_packed", {DType::kInt32, {8, 12}, 0, 384}}, {"x.weight_scale", scales}},
       "has rows of 96 numbers, which are not whole groups of 64"},
      {four,
       {{"x.weight_packed", words}, {"x.weight", {DType::kFloat32, {8, 128}, 0, 4096}}},
       "tensor 'x.weight' is there twice"},
  };
  for (const Case& c : cases) {
    auto tensors = c.tensors;
    const auto quantized = QuantizedTensors::Present(ParseQuantization(c.config).value(), tensors);
    EXPECT_THAT(quantized.status(), FailsSaying(absl::StatusCode::kInvalidArgument, c.sentence));
  }
}

}  // namespace
}  // namespace eta
