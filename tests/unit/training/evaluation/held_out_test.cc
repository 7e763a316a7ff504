// What a model is worth by training's own forward pass, against what the server says of it; and
// what a row of native sparse attention reads, against what its ops choose.
#include "training/evaluation/held_out.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "engine/checkpoint/checkpoint.h"
#include "gtest/gtest.h"
#include "tests/testing/training/harness.h"
#include "training/commands/tokenizer_folder.h"
#include "training/cpu/cpu_backend.h"
#include "training/evaluation/native_sparse_reads.h"
#include "training/export/trained_tensors.h"
#include "training/reference/reference_backend.h"

namespace eta::training {
namespace {

// Full attention is what both can do. The server keeps its caches in float16.
TEST(HeldOut, TrainingSaysWhatTheServerSays) {
  const std::string folder = ETA_SOURCE_DIR "/models/eta-27m";
  const auto checkpoint = Checkpoint::Open(folder).value();
  ModelSpec spec = SpecOf(ParseModelConfig(checkpoint.config_json()).value());
  const auto loaded = LoadTokenizerFolder(folder, spec.config);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  HeldOutOptions options;
  options.texts = {folder + "/samples/other/wiki.txt", folder + "/samples/other/code.txt"};
  options.context = 400;
  options.windows = 1;
  options.needles = 3;
  options.backend = {.name = "cpu", .num_threads = 2};
  const auto held_out = HeldOut::Create(options, *loaded->tokenizer);
  ASSERT_TRUE(held_out.ok()) << held_out.status();

  const auto cpu = cpu::MakeBackend(2);
  const auto parameters = Parameters::Create(spec, TrainedPart::kNothing, *cpu).value();
  ASSERT_TRUE(parameters->Load(checkpoint, {}).ok());
  // Training tempers no keys.
  const std::string config =
      absl::StrReplaceAll(checkpoint.config_json(), {{"\"temper\"", "\"attend\""}});
  const auto served = (*held_out)->Measure(TrainedTensors(*parameters, config, nullptr),
                                           /*full_only=*/true, {});
  ASSERT_TRUE(served.ok()) << served.status();
  const auto trained = (*held_out)->MeasureAsTrained(spec, *parameters, {.beta = spec.config.beta});
  ASSERT_TRUE(trained.ok()) << trained.status();
  EXPECT_TRUE(trained->as_trained);
  EXPECT_FALSE(served->as_trained);
  EXPECT_EQ(trained->tokens, served->tokens);
  ASSERT_EQ(trained->texts.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(trained->texts[i].text, served->texts[i].text);
    EXPECT_NEAR(trained->texts[i].full_perplexity / served->texts[i].full_perplexity, 1.0, 3e-3);
  }
  EXPECT_NEAR(trained->all.full_perplexity / served->all.full_perplexity, 1.0, 3e-3);
  EXPECT_EQ(trained->needles, 3);
  EXPECT_GT(served->full_hits, 0) << "the model finds needles";
  EXPECT_EQ(trained->full_hits, served->full_hits);
  EXPECT_FALSE(trained->caches) << "it is no rival";
}

TEST(NativeSparseReads, AreWhatTheOpsChoose) {
  constexpr int32_t kTokens = 64 * (kSelectedBlocks + 3) + 7;
  constexpr int32_t kBlocks = KeySelection::Blocks(kTokens);
  constexpr int64_t kWindows = CompressedCount(kTokens);
  constexpr int32_t kDim = 4;
  const auto reference = reference::MakeBackend();
  testing::Harness harness(*reference);
  testing::Numbers numbers(11);
  std::vector<uint64_t> selected(size_t{kBlocks} * kBlocks);
  const auto buffer = reference->Allocate(selected.size() * sizeof(uint64_t)).value();
  reference->CompressedAttention(
      {.shape = {1, kTokens, 1, 1, kDim, 0.5f},
       .q = harness.Activations(numbers.Normal(kTokens * kDim), kTokens, kDim),
       .k = harness.Activations(numbers.Normal(kWindows * kDim), kWindows, kDim),
       .v = harness.Activations(numbers.Normal(kWindows * kDim), kWindows, kDim),
       .out = harness.Activations(kTokens, kDim),
       .lse = harness.Floats(kTokens),
       .selected = buffer->as<uint64_t>()});
  reference->Download(selected.data(), buffer->data(), buffer->size());
  ASSERT_TRUE(reference->Finish().ok());
  for (int32_t t = 0; t < kTokens; ++t) {
    int32_t keys = 0;
    for (int32_t j = 0; j <= t / 64; ++j) {
      const uint64_t word = selected[static_cast<size_t>(j * kBlocks + t / 64)];
      if ((word >> (t % 64) & 1) != 0) keys += std::min(64, t + 1 - 64 * j);
    }
    const NativeSparseReads reads = NativeSparseReadsOf(t);
    ASSERT_EQ(reads.selected, keys) << t;
    ASSERT_EQ(reads.compressed, t < 31 ? 0 : (t + 1 - 32) / 16 + 1) << t;
    ASSERT_EQ(reads.window, std::min(512, t + 1)) << t;
  }
}

TEST(NativeSparseReads, SharesAreMeansOverRows) {
  const CacheShares one = NativeSparseShares(4095, 4096);
  EXPECT_DOUBLE_EQ(one.reads, (255 + 1024 + 512) / 4096.0);
  EXPECT_DOUBLE_EQ(one.holds, 2.0 + 255 / 4096.0);
  const CacheShares two = NativeSparseShares(4094, 4096);
  EXPECT_DOUBLE_EQ(two.reads, (one.reads + (254 + 1023 + 512) / 4095.0) / 2.0);
  EXPECT_DOUBLE_EQ(NativeSparseShares(0, 1).reads, 2.0) << "two branches read the one key";
}

}  // namespace
}  // namespace eta::training
