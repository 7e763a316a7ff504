// Models with experts: what their weights take.
#include <cstdint>
#include <memory>
#include <string>

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_gguf.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

using testing::TinyModel;
using testing::TinyModelOptions;

TinyModelOptions WithExperts(int32_t count) {
  TinyModelOptions options;
  options.model_type = "qwen3_moe";
  options.num_experts = count;
  options.experts_per_token = 2;
  options.expert_ffn_dim = 64;
  return options;
}

std::unique_ptr<Model> LoadOn(Backend& backend, const TinyModelOptions& options,
                              WeightFormat format) {
  const TinyModel model(options);
  const auto checkpoint = Checkpoint::Open(model.path()).value();
  return Model::Load(checkpoint, backend, {.weights = format, .max_rows = 4}).value();
}

// Of one expert, all layers together; gate and up, then down, of 64 x 64 numbers each.
size_t ExpertBytes(WeightFormat format) {
  constexpr size_t kNumbers = 64 * 64;
  constexpr size_t kLayers = 2;
  switch (format) {
    case WeightFormat::kNative:
    case WeightFormat::kUnpacked:
      return kLayers * 3 * kNumbers * sizeof(float);
    case WeightFormat::kInt8:
      return kLayers * 3 * kNumbers * 34 / 32;
    case WeightFormat::kInt4:
      return kLayers * (2 * kNumbers * 20 / 32 + kNumbers * 34 / 32);
  }
  return 0;
}

TEST(ModelExperts, AreKeptEachInItsFormatAndARowReadsItsOwn) {
  const auto backend = MakeBackend({.name = "cpu", .num_threads = 1}).value();
  for (const WeightFormat format :
       {WeightFormat::kNative, WeightFormat::kInt8, WeightFormat::kInt4}) {
    SCOPED_TRACE(Name(format));
    const auto few = LoadOn(*backend, WithExperts(4), format);
    const auto many = LoadOn(*backend, WithExperts(12), format);
    // A router of up to 32 experts is one panel.
    EXPECT_EQ(many->weight_bytes() - few->weight_bytes(), 8 * ExpertBytes(format));
    EXPECT_EQ(many->weight_bytes() - many->row_bytes(), 10 * ExpertBytes(format));
    EXPECT_EQ(many->row_bytes(), few->row_bytes());
  }
}

TEST(ModelExperts, OfAFileTakeItsMemory) {
  const TempFolder folder;
  testing::TinyGguf tiny({.architecture = "qwen3moe",
                          .model_dim = 256,
                          .head_dim = 64,
                          .num_experts = 8,
                          .expert_ffn_dim = 256});
  const GgmlType types[] = {GgmlType::kQ4_K, GgmlType::kQ6_K};
  testing::UseBlocks(tiny.file, types);
  const std::string file = tiny.file.Serialize();
  const auto checkpoint = Checkpoint::Open(folder.Write("model.gguf", file)).value();
  const auto backend = MakeBackend({.name = "cpu", .num_threads = 1}).value();
  const auto model = Model::Load(checkpoint, *backend, {.max_rows = 4});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_LE(static_cast<double>((*model)->weight_bytes()), 1.15 * static_cast<double>(file.size()));
}

}  // namespace
}  // namespace eta
