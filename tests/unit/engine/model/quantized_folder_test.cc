// Folders in fp8 and compressed-tensors, from the file to the model.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "kernels/quantize.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using Json = nlohmann::json;
using testing::TinyModel;

constexpr int64_t kBlockRows = 16;
constexpr int64_t kBlockCols = 64;
constexpr int64_t kGroup = 32;

// A checkpoint with its projections quantised, as `kind` says: "fp8", "float", "int" or "pack".
class QuantizedSource : public TensorSource {
 public:
  QuantizedSource(const Checkpoint& source, const std::string& kind) : kind_(kind) {
    Json config = Json::parse(source.config_json());
    config["quantization_config"] = Config();
    config_json_ = config.dump();
    for (const auto& [name, info] : source.tensors()) {
      const std::vector<std::byte> bytes = source.Read(name).value();
      if (!name.ends_with("_proj.weight") || name.find("tau_proj") != std::string::npos) {
        tensors_[name] = info;
        data_[name] = bytes;
        continue;
      }
      std::vector<float> numbers(bytes.size() / sizeof(float));
      std::memcpy(numbers.data(), bytes.data(), bytes.size());
      Quantize(name, info.shape[0], info.shape[1], numbers);
    }
  }

  const std::string& config_json() const override { return config_json_; }
  const std::map<std::string, TensorInfo>& tensors() const override { return tensors_; }
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const override {
    return data_.at(name);
  }
  void Corrupt(const std::string& name) { std::ranges::fill(data_.at(name), std::byte{0xFF}); }

 private:
  Json Config() const {
    if (kind_ == "fp8") {
      return {{"quant_method", "fp8"}, {"weight_block_size", {kBlockRows, kBlockCols}}};
    }
    Json weights = {{"num_bits", kind_ == "pack" ? 4 : 8},
                    {"type", kind_ == "float" ? "float" : "int"},
                    {"strategy", kind_ == "pack" ? "group" : "channel"}};
    if (kind_ == "pack") weights["group_size"] = kGroup;
    return {{"quant_method", "compressed-tensors"},
            {"format", kind_ + "-quantized"},
            {"config_groups", {{"group_0", {{"weights", weights}}}}}};
  }
  template <typename T>
  void Put(const std::string& name, DType dtype, std::vector<int64_t> shape,
           const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    tensors_[name] = {dtype, std::move(shape), 0, bytes.size()};
    data_[name] = std::move(bytes);
  }
  void Quantize(const std::string& name, int64_t rows, int64_t cols,
                const std::vector<float>& numbers) {
    const int64_t block_rows = kind_ == "fp8" ? kBlockRows : 1;
    const int64_t block_cols = kind_ == "fp8" ? kBlockCols : kind_ == "pack" ? kGroup : cols;
    const int64_t down = (rows + block_rows - 1) / block_rows;
    const int64_t across = (cols + block_cols - 1) / block_cols;
    const bool floats = kind_ == "fp8" || kind_ == "float";
    const float most = floats ? kMaxE4M3 : kind_ == "pack" ? 7.0f : 127.0f;
    std::vector<float> scales(static_cast<size_t>(down * across));
    const auto scale_of = [&](int64_t r, int64_t c) -> float& {
      return scales[static_cast<size_t>(r / block_rows * across + c / block_cols)];
    };
    const auto at = [&](int64_t r, int64_t c) {
      return numbers[static_cast<size_t>(r * cols + c)];
    };
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        scale_of(r, c) = std::max(scale_of(r, c), std::abs(at(r, c)) / most);
      }
    }
    std::vector<uint8_t> codes(numbers.size());
    std::vector<uint32_t> words(numbers.size() / 8);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const auto i = static_cast<size_t>(r * cols + c);
        const float number = at(r, c) / scale_of(r, c);
        const auto q = static_cast<int>(std::nearbyint(number));
        codes[i] = floats ? FloatToE4M3(number) : static_cast<uint8_t>(q);
        if (kind_ == "pack") words[i / 8] |= static_cast<uint32_t>(q + 8) << (i % 8 * 4);
      }
    }
    const std::string base = name.substr(0, name.size() - 7);
    if (kind_ == "pack") {
      Put(base + ".weight_packed", DType::kInt32, {rows, cols / 8}, words);
      Put(base + ".weight_shape", DType::kInt64, {2}, std::vector<int64_t>{rows, cols});
    } else {
      Put(name, floats ? DType::kFloat8E4M3 : DType::kInt8, {rows, cols}, codes);
    }
    Put(base + (kind_ == "fp8" ? ".weight_scale_inv" : ".weight_scale"), DType::kFloat32,
        {down, across}, scales);
  }

  const std::string kind_;
  std::string config_json_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::vector<std::byte>> data_;
};

std::string Write(const TensorSource& source, const TempFolder& parent, const std::string& name) {
  const std::string folder = parent.path() + "/" + name;
  EXPECT_EQ(WriteCheckpoint(source, {}, folder, std::nullopt, false), absl::OkStatus());
  return folder;
}

TEST(QuantizedFolder, LoadsAsTheModelThatItStandsFor) {
  const TinyModel model;
  const auto plain = Checkpoint::Open(model.path()).value();
  const std::pair<std::string, double> kinds[] = {
      {"fp8", 0.04}, {"float", 0.04}, {"int", 0.01}, {"pack", 0.15}};
  const TempFolder parent;
  for (const auto& [kind, loss] : kinds) {
    SCOPED_TRACE(kind);
    const QuantizedSource source(plain, kind);
    const auto opened = Checkpoint::Open(Write(source, parent, kind));
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_EQ(opened->tensors().size(), plain.tensors().size());
    for (const auto& [name, info] : plain.tensors()) {
      EXPECT_EQ(opened->tensors().at(name).shape, info.shape) << name;
      const auto want = plain.Read(name).value();
      const auto got = opened->Read(name).value();
      ASSERT_EQ(got.size(), want.size()) << name;
      double error = 0.0;
      double square = 0.0;
      for (size_t i = 0; i < want.size() / sizeof(float); ++i) {
        const auto index = static_cast<int64_t>(i);
        const double b = LoadElement(DType::kFloat32, want.data(), index);
        error += std::pow(LoadElement(DType::kFloat32, got.data(), index) - b, 2);
        square += b * b;
      }
      EXPECT_LE(error, loss * loss * square) << name;
    }
    size_t bytes = 0;
    for (const char* name : {"reference", "cpu"}) {
      const auto backend = MakeBackend({.name = name}).value();
      const auto loaded = Model::Load(*opened, *backend, {});
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      bytes = (*loaded)->weight_bytes();
      const auto unpacked = Model::Load(*opened, *backend, {.weights = WeightFormat::kUnpacked});
      ASSERT_TRUE(unpacked.ok()) << unpacked.status();
      EXPECT_EQ(bytes < (*unpacked)->weight_bytes(), kind == "int" || kind == "pack");
    }
    // A folder that is written of it holds the numbers.
    const std::string again = parent.path() + "/" + kind + "-again";
    ASSERT_EQ(WriteCheckpoint(*opened, again, std::nullopt), absl::OkStatus());
    const auto numbers = Checkpoint::Open(again);
    ASSERT_TRUE(numbers.ok()) << numbers.status();
    EXPECT_THAT(numbers->config_json(), ::testing::Not(::testing::HasSubstr("quantization")));
    for (const auto& [name, info] : plain.tensors()) {
      EXPECT_EQ(numbers->Read(name).value(), opened->Read(name).value()) << name;
    }
  }
}

// bad input: Weights | scales of quantised weights that are NaN, infinite or beyond float16 |
//   FAILED_PRECONDITION, the tensor named
TEST(QuantizedFolder, ScalesThatAreNoNumbersAreRefusedByTheTensor) {
  const TinyModel model;
  const auto plain = Checkpoint::Open(model.path()).value();
  const auto backend = MakeBackend({.name = "reference"}).value();
  const TempFolder parent;
  const std::string base = "model.layers.1.self_attn.o_proj.weight";
  for (const std::string kind : {"fp8", "int", "pack"}) {
    QuantizedSource source(plain, kind);
    source.Corrupt(base + (kind == "fp8" ? "_scale_inv" : "_scale"));
    const auto opened = Checkpoint::Open(Write(source, parent, kind));
    ASSERT_TRUE(opened.ok()) << opened.status();
    const absl::Status status = Model::Load(*opened, *backend, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("tensor " + base + ": "));
    EXPECT_TRUE(Model::Load(*opened, *backend, {.allow_nonfinite_weights = true}).ok());
  }
}

}  // namespace
}  // namespace eta
